"""What a run folder holds, how far its training is, and whether it would load."""

from contextlib import suppress
from pathlib import Path

from archlab.atlas.inspect import Inspection, choices
from archlab.atlas.tricks import tricks
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.families.registry import FAMILIES
from archlab.infer.load import load_run
from archlab.training.run_folder import RunFolder, imported


def inspect_run(folder: Path) -> Inspection:
    """Read all that generating text would read, weights included."""
    found = Inspection(model_type=None, architecture=None, choices={}, unusual=[], problems=[])
    try:
        config = load_config(folder)
        found = found.model_copy(update={"choices": choices(config.model), "unusual": tricks(config)})
        if begun := imported(folder):
            family = FAMILIES.get(begun.family)
            architecture = family.architecture if family else None
            found = found.model_copy(update={"model_type": begun.family, "architecture": architecture})
        steps, _ = load_run(folder)
        return found.model_copy(update={"trained": _trained(folder, steps)})
    except UserError as error:
        return found.model_copy(update={"trained": _trained(folder, None), "problems": [str(error)]})


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
    begun = imported(folder)
    origin = f"; as published in {begun.source}" if begun and begun.source else "; as published"
    return f"{steps:,} steps, not finished" if steps else f"not yet{origin}"
