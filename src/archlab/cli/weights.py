"""Refusing a CONFIG that holds weights where a training would begin from random ones."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from archlab.config.io import find_preset, read_entry
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.files import real_path
from archlab.hf.folder import CONFIG, is_hf_folder
from archlab.hf.hub import is_hub_id
from archlab.train.checkpoint import has_checkpoint
from archlab.train.run_folder import RunFolder
from archlab.train.step import warmup_steps

RUN_CONFIG = "config.yaml"

_FORMATS = (".safetensors", ".bin", ".pt", ".pth")
"""Ends of the names of files with weights in a published folder."""


def refuse_unread_weights(config: str, overrides: Sequence[str], out: Path) -> None:
    """Raise UserError if a training in `out` would ignore the weights of CONFIG, or of a folder that a `base` names.

    A run in `out` that has a checkpoint goes on from there, and a file (config.yaml, config.json) is a config alone.
    The message prints the command that trains those weights, and the one that begins from random values.
    """
    if has_checkpoint(out / "checkpoints") or real_path(out) == real_path(Path(config)):
        return
    if _holds_weights(config):
        rest = shlex.join([*overrides, "--out"])
        lines = (
            f"{config}: holds weights, but a training in {out} would begin from random values.",
            *_further(config, rest, shlex.quote(str(out))),
            "To begin from random values, with the config alone:",
            *(f"  {command}" for command in _anew(config, rest, shlex.quote(str(out)))),
        )
        raise UserError("\n".join(lines))
    for file, base in _bases(Path(config)):
        if _holds_weights(str(file.parent / base)):
            raise UserError(
                f"{file}: base is {base}, a folder with weights, but a base gives its config alone.\n"
                f"To begin from random values, name the file: base: {Path(base) / _config_file(file.parent / base)}\n"
                f"To train those weights, give `archlab train` the folder: it then prints how."
            )


def _bases(file: Path) -> Iterator[tuple[Path, str]]:
    """Each file of CONFIG with a `base`, which is a path from it."""
    seen = set[Path]()
    while file.is_file() and file.name != CONFIG and file not in seen:
        seen.add(file)
        base = read_entry(file)[1].get("base")
        if not isinstance(base, str) or not (file.parent / base).exists():  # none, or a preset
            return
        yield file, base
        file = file.parent / base


def _holds_weights(source: str) -> bool:
    folder = Path(source)
    if not folder.exists():
        return find_preset(source) is None and is_hub_id(source) and folder.suffix not in (".yaml", ".yml")
    if not folder.is_dir():
        return False
    if _config_file(folder) == RUN_CONFIG:
        return has_checkpoint(folder / "checkpoints")
    return is_hf_folder(folder) and any(file.suffix in _FORMATS for file in folder.iterdir())


def _config_file(folder: Path) -> str:
    return RUN_CONFIG if (folder / RUN_CONFIG).is_file() else CONFIG


def _further(source: str, rest: str, out: str) -> list[str]:
    """Lines that say how the weights of `source` are trained further."""
    folder, name, heading = Path(source), shlex.quote(source), "To train these weights further:"
    if _config_file(folder) == CONFIG:
        return [heading, f"  archlab import {name} --out {out}", f"  archlab train {out} {rest} {out}"]
    run = RunFolder(folder)
    if not run.environment():  # imported, and not begun: the overrides decide how it is trained
        return [heading, f"  archlab train {name} {rest} {name}"]
    if run.summary() is None:
        return [heading, f"  archlab train {name} --out {name}"]
    old = resolve_train(load_config(folder))
    longer = old.model_copy(update={"tokens": 2 * old.tokens, "warmup": warmup_steps(old)})
    try:
        run.check_extension(old, longer)
    except UserError as error:
        return [f"These weights cannot be trained further: {error}"]
    warmup = "" if isinstance(old.warmup, int) else f"train.warmup={longer.warmup} "
    return [f"{heading[:-1]} (the run is finished; this makes it longer):",
            f"  archlab train {name} train.tokens={longer.tokens} {warmup}--out {name}"]  # fmt: skip


def _anew(source: str, rest: str, out: str) -> list[str]:
    """Commands that train the model of `source` from random values."""
    folder = Path(source)
    if folder.exists():
        return [f"archlab train {shlex.quote(str(folder / _config_file(folder)))} {rest} {out}"]
    file = shlex.quote(f"{folder.name}.yaml")
    return [f"archlab show {shlex.quote(source)} > {file}", f"archlab train {file} {rest} {out}"]
