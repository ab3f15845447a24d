"""The examples in the docstrings of the public names, which the reference shows."""

import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import archlab
import tiny
from archlab.config.core.yaml_text import to_yaml
from plugin_files import DOCUMENT

_MASKED = ("model.attention.visibility=two_sided", "train.objective.kind=masked", "data.reserve=[mask]")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


WITHOUT_EXAMPLE = {
    "Component": "the base class of MLP, Attention and Mixer",
    "lm_eval": "needs the extra lm-eval, and questions from the Hugging Face hub",
    "measure_hardware": "takes four minutes, and needs a machine without other work",
}
"""Reason why a public name has no example."""


@pytest.fixture(scope="module")
def examples_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    text = tiny.write_text(folder)
    config = tiny.config(data=text)
    (folder / "mine.yaml").write_text(to_yaml(config.model_dump(mode="json")))
    archlab.train(config, folder / "runs/a")
    archlab.train(tiny.config(*_MASKED, data=text), folder / "runs/encoder")
    arms = {"silu": {}, "gelu": {"model.mlp.activation": "gelu"}}
    base = str(folder / "mine.yaml")
    study = {"question": "Which?", "base": base, "budget": {"tokens": 320}, "arms": arms, "seeds": 2}
    archlab.run_study(study, folder / "studies/a")
    return folder


def examples() -> Iterator[doctest.DocTest]:
    for name in archlab.__all__:
        found = doctest.DocTestParser().get_doctest(
            inspect.getdoc(getattr(archlab, name)) or "", {"archlab": archlab, "torch": torch}, name, None, 0
        )
        if found.examples:
            yield found


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_the_example_of_a_docstring(
    example: doctest.DocTest, examples_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(examples_folder)
    assert doctest.DocTestRunner(optionflags=_FLAGS).run(example).failed == 0


def test_every_public_name_has_an_example() -> None:
    """Names for plug-ins have theirs in docs/plugins.md, whose code tests/integration/test_plugins.py runs."""
    names = {name for name in archlab.__all__ if not name.startswith("__")}
    names -= {name for name in names if re.search(rf"archlab\.{name}\b", DOCUMENT)}
    assert names - {example.name for example in examples()} == WITHOUT_EXAMPLE.keys()
