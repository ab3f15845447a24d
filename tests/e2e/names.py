"""A study for the tests of studies, and the results that they read from its folder."""

import json

STUDY = """
question: Does it train at any rate?
base: tiny.yaml
set: {train.checkpoint_every: 20, train.eval_every: 50}
budget: {tokens: 9600}
seeds: 2
arms:
  first: {}
  wild: {train.lr: 1.0e+38, train.warmup: 0}
"""


def runs(folder):
    return {path.name: path for path in (folder / "runs").iterdir()}


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def results(folder):
    """Return the results that must not depend on when and how often the study was stopped."""
    return [
        {key: arm[key] for key in ("name", "values", "comparison", "curves", "diverged", "parameters")}
        for arm in summary(folder)["arms"]
    ]
