"""Inspection of a run folder or of a published model."""

from contextlib import suppress
from pathlib import Path

from archlab.atlas.inspect import Inspection, choices, inspect_published
from archlab.atlas.tricks import tricks
from archlab.errors import UserError
from archlab.exchange.configs import find_folder, is_run_folder, load_config
from archlab.families.registry import FAMILIES
from archlab.hf.imported import imported
from archlab.infer.load import load_run
from archlab.training.run_folder import RunFolder


def inspect(folder: str | Path) -> Inspection:
    """Return what a model folder contains, and the reasons why archlab cannot load it, if there are any.

    `folder` is a run folder, a Hugging Face folder with config.json and weights, or a hub id, whose model is
    downloaded. Raise UserError if it is none of these.

    >>> inspection = archlab.inspect("runs/a")
    >>> inspection.loads, inspection.choices["position"]
    (True, 'RoPE')
    """
    home = find_folder(str(folder))
    return _inspect_run(home) if is_run_folder(home) else inspect_published(home)


def _inspect_run(folder: Path) -> Inspection:
    """Inspect a run folder. To find problems, load everything that text generation needs, including the weights."""
    result = Inspection(model_type=None, architecture=None, choices={}, unusual=[], problems=[])
    try:
        config = load_config(folder)
        result = result.model_copy(update={"choices": choices(config.model), "unusual": tricks(config)})
        if record := imported(folder):
            family = FAMILIES.get(record.family)
            architecture = family.architecture if family else None
            result = result.model_copy(update={"model_type": record.family, "architecture": architecture})
        steps, _ = load_run(folder)
        return result.model_copy(update={"trained": _trained(folder, steps)})
    except UserError as error:
        return result.model_copy(update={"trained": _trained(folder, None), "problems": [str(error)]})


def _trained(folder: Path, steps: int | None) -> str:
    ended = None
    with suppress(UserError):
        ended = RunFolder(folder).summary()
    if ended and ended.status == "finished":
        return f"{ended.steps:,} steps, finished: {ended.result}"
    if ended:
        return f"diverged after {ended.steps:,} steps"
    if steps is None:
        return "unknown"
    record = imported(folder)
    origin = f"; as published in {record.source}" if record and record.source else "; as published"
    return f"{steps:,} steps, not finished" if steps else f"not yet{origin}"
