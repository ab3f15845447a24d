"""A short run, a short study and their expected outcome, for the tests of power cuts and damage."""

from archlab.infer.load import load_model
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.train import train

SHORT = ("train.tokens=1280", "train.checkpoint_every=4", "train.eval_every=5")
"""20 steps, over tiny.yaml."""

STUDY = """
question: Does a second name help?
base: tiny.yaml
set: {train.checkpoint_every: 4, train.eval_every: 5}
budget: {tokens: 640}
seeds: 2
arms: {first: {}, wild: {train.lr: 1.0e+38, train.warmup: 0}}
"""

_TIMES = ("tokens_per_second", "mfu")


def outcome(run):
    """Return the part of a run folder that must not depend on when the run was stopped."""
    weights = {name: value.tolist() for name, value in load_model(run).state_dict().items()}
    lines = [_without_times(line) for line in RunFolder(run).metrics()]
    return _without_times(RunFolder(run).summary().model_dump()), lines, weights


def _without_times(values):
    return {key: value for key, value in values.items() if key not in _TIMES}


def run_here(_, runs, study, on_progress):
    """Train all runs in this process, as `run_all` of an executor does. Return the failed runs, of which there are none."""
    for run in runs:
        train(run.config, run.folder(study), Callback(), run.corpus)
    return []


def silent(runs):
    """Progress of a study that prints nothing."""
    return lambda progress: None
