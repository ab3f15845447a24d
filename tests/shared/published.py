"""The atlas's entries, made once for all files of tests that read them, and a model that archlab cannot build."""

from pathlib import Path

import pytest

from archlab.atlas.models import entries
from archlab.config.io import devices, facts, presets, studies
from archlab.review.published import published

ENTRIES = {entry.preset: entry for entry in entries()}

HALF = """
about:
  name: Half
  year: 2020
  source: [a test]
  certainty: from memory
  cannot_build: it has a second half
  shown: decoder half only
  published_parameters: 1B
model: {vocab_size: 32000, d_model: 1024, n_layers: 24, attention: {n_heads: 16}, mlp: {kind: plain, d_ff: 4096}}
"""


def add_half_a_model(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Add facts about a model that archlab can only show in part, and return the name of the model."""
    published()  # archlab remembers them for the other tests
    (folder / "half.yaml").write_text(HALF)
    added = {**facts(), "half": folder / "half.yaml"}
    files = {"presets": presets(), "facts": added, "studies": studies(), "devices": devices()}
    monkeypatch.setattr("archlab.config.io._yaml_files", files.__getitem__)
    return "half"
