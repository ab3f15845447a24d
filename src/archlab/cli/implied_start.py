"""Trained weights from which `archlab train` begins."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from archlab.config.core.merge import expand
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.io import is_full_name, parse_overrides, read_entry
from archlab.errors import UserError
from archlab.exchange.configs import RUN_CONFIG, config_file, source_kind, start_of
from archlab.files import real_path
from archlab.hf.folder import CONFIG, has_weights
from archlab.training.checkpoint import has_checkpoint
from archlab.training.schedule import LENGTH


def with_start(config: str, overrides: Sequence[str], out: Path) -> Sequence[str]:
    """Return the overrides, with `train.start` set to CONFIG if it is a folder or hub id with weights.

    The overrides stay as they are if CONFIG is `out` itself, whose run continues, or a file (config.yaml, config.json),
    because a file has no weights. Raise UserError if CONFIG is a folder whose weights are gone, or a file whose `base`
    has weights, which would be ignored.
    """
    if start_of(expand(parse_overrides(overrides)[0])) or real_path(out) == real_path(Path(config)):
        return overrides
    if _holds_weights(config):
        folder = str(real_path(Path(config))) if Path(config).exists() else config
        return (f"train.start={folder}", *_length_of(out, folder), *overrides)
    if source_kind(config) in ("run folder", "Hugging Face folder"):
        raise UserError(
            f"{config}: has no weights from which to begin; to begin from random weights, name its config file: "
            f"{config_file(config)}"
        )
    for file, base in _bases(config_file(config)):
        folder = file.parent / base
        if _holds_weights(folder):
            raise UserError(
                f"{file}: base is {base}, a folder with weights, but a base provides only its config. To begin from "
                f"those weights, write train.start: {base} instead; to begin from random weights, name the config "
                f"file: base: {Path(base) / config_file(folder).name}"
            )
    return overrides


def _length_of(out: Path, start: str) -> Iterator[str]:
    """Yield overrides with the length of the run in `out`, if it has begun from the weights `start`: their own run,
    which gave it its length, may have been extended since."""
    if (file := out / RUN_CONFIG).is_file() and start_of(raw := read_entry(file)[1]) == start:
        yield from (f"train.{name}={to_yaml_line(raw['train'][name])}" for name in sorted(LENGTH & raw["train"].keys()))


def _bases(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield each config file that has a `base`, and its base as a path relative to the file. Begin with `file` and
    follow the bases."""
    seen = set[Path]()
    while file.is_file() and file.name != CONFIG and file not in seen:
        seen.add(file)
        base = read_entry(file)[1].get("base")
        if not isinstance(base, str) or is_full_name(base) or not (file.parent / base).exists():  # no base, or a preset
            return
        yield file, base
        file = config_file(file.parent / base)


def _holds_weights(source: str | Path) -> bool:
    match source_kind(source):
        case "run folder":
            return has_checkpoint(Path(source) / "checkpoints")
        case "Hugging Face folder":
            return has_weights(Path(source))
        case kind:
            return kind == "hub id"
