"""A study's folder: whose it is, and what its file said before."""

from pathlib import Path

from archlab.config.beside import plugins_of
from archlab.config.core.plugins import copies
from archlab.config.core.trust import remember
from archlab.config.core.yaml_text import read_yaml, to_yaml
from archlab.digests import DIGESTS, write_with_digests
from archlab.errors import UserError
from archlab.exchange.configs import read_config
from archlab.files import TEMPORARY, disk_errors, make_folder, refuse_linked_folders, write_atomic
from archlab.study.corpora import Corpora, write_corpora
from archlab.study.planned import write_plan
from archlab.study.record import StudySummary, has_summary, read_summary
from archlab.study.schema import StudyConfig
from archlab.study.study_file import is_study_folder, read_held
from archlab.training.run_folder import STUDY

_BASE = "base.yaml"
"""The base in a study's folder, where it is no preset."""


def claim(folder: Path, config: StudyConfig, corpora: Corpora) -> None:
    """Make the folder this study's, or check that it is."""
    # Copied, so that the folder stays whole when those files change or go.
    plugins, copied = copies(config.plugins, folder)
    if Path(config.base).exists():
        copied[_BASE] = to_yaml(read_config(config.base)).encode()
    with disk_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; --out names a folder")
        make_folder(folder)
        refuse_linked_folders(folder)
        held = sorted(p for p in folder.iterdir() if not p.name.startswith(TEMPORARY))
        # A kill may leave the copies and their digests alone.
        foreign = [
            p.name for p in held if p.name != DIGESTS and not (p.is_file() and p.read_bytes() == copied.get(p.name))
        ]
    if before := _before(folder):
        if before.question != config.question:
            raise UserError(f"{folder}: holds another study ({before.question!r}); name another folder")
    elif foreign:
        raise UserError(f"{folder}: holds something else ({foreign[0]}) and no study.yaml; name an empty folder")
    values = config.model_dump(mode="json", exclude_defaults=True)
    remember([*config.plugins, *plugins_of(read_config(config.base))])
    if copied:
        write_with_digests(folder, {**copied})
    if plugins:
        values["plugins"] = plugins
    if _BASE in copied:
        values["base"] = _BASE
    write_atomic(folder / STUDY, to_yaml(values))  # not listed, for people may edit it
    write_corpora(corpora, folder)
    if not has_summary(folder):
        write_plan(folder, config.seeds)


def changed_fields(folder: Path, config: StudyConfig) -> list[str]:
    """The fields in which the study that the folder holds differs from this one."""
    before = _before(folder)
    if before is None or before.question != config.question:
        return []
    same = {"plugins"} if _same_plugins(folder, config) else set[str]()
    if before.base != config.base and read_config(before.base) == read_config(config.base):
        same.add("base")
    others = [name for name in StudyConfig.model_fields if name not in same]
    return [name for name in others if name == "plugins" or getattr(before, name) != getattr(config, name)]


def _same_plugins(folder: Path, config: StudyConfig) -> bool:
    """Whether the folder holds a copy of each, and names no other."""
    names, copied = copies(config.plugins, folder)
    held = read_yaml(folder / STUDY).get("plugins", [])
    return held == names and all(
        (folder / name).is_file() and (folder / name).read_bytes() == code for name, code in copied.items()
    )


def old_summary(folder: Path) -> StudySummary:
    """The summary that the folder holds, with a note that its runs are not there."""
    summary = read_summary(folder)
    note = "its runs are not here, or read other tokens, or in another number format; this is their old summary"
    return summary.model_copy(update={"warnings": [*summary.warnings, note]})


def _before(folder: Path) -> StudyConfig | None:
    return read_held(folder) if is_study_folder(folder) else None
