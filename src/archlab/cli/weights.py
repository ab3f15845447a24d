"""Check that a training run does not ignore the weights of the folder that CONFIG names."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from archlab.config.io import read_entry
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.configs import config_file, kind_of, load_config
from archlab.files import real_path
from archlab.hf.folder import CONFIG, has_weights
from archlab.training.checkpoint import has_checkpoint
from archlab.training.run_folder import RunFolder
from archlab.training.schedule import warmup_steps


def refuse_unread_weights(config: str, overrides: Sequence[str], out: Path) -> None:
    """Raise UserError if a new run would ignore the weights of CONFIG, or of a folder that CONFIG names as its `base`.

    A new run starts from random weights. There is no error if `out` already has a checkpoint, from which the run
    resumes, or if CONFIG is a file (config.yaml, config.json), because a file has no weights. The message contains two
    commands: one trains the weights of CONFIG, the other starts from random weights.
    """
    if has_checkpoint(out / "checkpoints") or real_path(out) == real_path(Path(config)):
        return
    if _holds_weights(config):
        problem = "has weights"
        if kind_of(config) == "hub id":
            problem = "is not a folder on this machine; as a hub id, it names a model with weights"
        lines = (
            f"{config}: {problem}, but training in {out} would start from random weights.",
            *_to_train_these(config, overrides, out),
            "To start from random weights, use only the config:",
            *_to_train_random(config, overrides, out),
        )
        raise UserError("\n".join(lines))
    for file, base in _bases(config_file(config)):
        folder = file.parent / base
        if _holds_weights(folder):
            raise UserError(
                f"{file}: base is {base}, a folder with weights, but a base provides only its config.\n"
                f"To start from random weights, name the config file: base: {Path(base) / config_file(folder).name}\n"
                f"To train those weights, run `archlab train` with the folder; it then prints the command to use."
            )


def _bases(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield each config file that has a `base`, and its base as a path relative to the file. Begin with `file` and
    follow the bases."""
    seen = set[Path]()
    while file.is_file() and file.name != CONFIG and file not in seen:
        seen.add(file)
        base = read_entry(file)[1].get("base")
        if not isinstance(base, str) or not (file.parent / base).exists():  # no base, or a preset
            return
        yield file, base
        file = config_file(file.parent / base)


def _holds_weights(source: str | Path) -> bool:
    match kind_of(source):
        case "run folder":
            return has_checkpoint(Path(source) / "checkpoints")
        case "Hugging Face folder":
            return has_weights(Path(source))
        case kind:
            return kind == "hub id"


def _to_train_these(source: str, overrides: Sequence[str], out: Path) -> list[str]:
    heading = "To train these weights further:"
    if kind_of(source) != "run folder":
        return [heading, _command("import", source, "--out", out), _command("train", out, *overrides, "--out", out)]
    run = RunFolder(Path(source))
    if not run.environment():  # imported and not trained yet: the overrides apply
        return [heading, _command("train", source, *overrides, "--out", source)]
    if run.summary() is None:
        return [heading, _command("train", source, "--out", source)]
    old = resolve_train(load_config(source))
    new_tokens = resolve_train(load_config(source, *overrides)).tokens
    tokens = new_tokens if new_tokens > old.tokens else 2 * old.tokens
    longer = old.model_copy(update={"tokens": tokens, "warmup": warmup_steps(old)})
    try:
        run.check_extension(old, longer)
    except UserError as error:
        return [f"These weights cannot be trained further: {error}"]
    warmup = [] if isinstance(old.warmup, int) else [f"train.warmup={longer.warmup}"]
    return [
        f"{heading[:-1]} (the run is finished; this extends it):",
        _command("train", source, f"train.tokens={longer.tokens}", *warmup, "--out", source),
    ]


def _to_train_random(source: str, overrides: Sequence[str], out: Path) -> list[str]:
    if kind_of(source) != "hub id":
        return [_command("train", config_file(source), *overrides, "--out", out)]
    file = f"{Path(source).name}.yaml"
    return [f"{_command('show', source)} > {shlex.quote(file)}", _command("train", file, *overrides, "--out", out)]


def _command(*words: str | Path) -> str:
    return f"  {shlex.join(('archlab', *map(str, words)))}"
