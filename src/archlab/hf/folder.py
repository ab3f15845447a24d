"""Hugging Face folders: which files they have, and how they are downloaded from the hub. No file outside them is read.

A hub id is `organisation/name` or `organisation/name@revision`. A revision is a branch, a tag or a commit of the
model's repository. A download needs network and the extra `hub`.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from archlab.config.core.merge import Raw
from archlab.errors import UserError
from archlab.files import LARGE_TEXT_LIMIT, MEBIBYTE, read_bytes, read_object, real_path

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
"""Fixed names. The index says which of several files holds a tensor."""

PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
"""Names of the same files in the older format of torch.save, which is read if there is no safetensors file."""

COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
"""Files that go along unread."""


def is_hf_folder(folder: Path) -> bool:
    """Whether it looks like one: it has a config.json, which no run folder has."""
    return (folder / CONFIG).is_file()


def has_weights(folder: Path) -> bool:
    """Whether the folder has a file of weights that is read, or an index of several."""
    return any((folder / name).is_file() for name in (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX))


def companions(folder: Path, names: Iterable[str] = COMPANIONS) -> dict[str, bytes]:
    """Return the content of each of these files that the folder has."""
    return {name: read_bytes(own_file(folder, name), LARGE_TEXT_LIMIT) for name in names if (folder / name).is_file()}


def homes(folder: Path) -> tuple[Path, ...]:
    """Return the real folder and, in the hub's cache, the folder `blobs` to which its links lead."""
    home = real_path(folder)
    revision = next((path for path in (home, *home.parents) if path.parent.name == "snapshots"), None)
    return (home, revision.parent.parent / "blobs") if revision else (home,)


def own_file(folder: Path, name: str) -> Path:
    """The file of that name in the folder; UserError for a path or a link that leads out of it.

    The hub's cache links from snapshots/REVISION/ to its own blobs/, which is allowed.
    """
    file = folder / name
    if PurePath(name).name != name or "\0" in name or real_path(file).parent not in homes(folder):
        raise UserError(f"{folder}: {name!r} is not a file of this folder")
    return file


def read_json(file: Path, limit: int = MEBIBYTE) -> Raw:
    """A JSON object; UserError that names the file."""
    return read_object(own_file(file.parent, file.name), limit)


def is_hub_id(source: str) -> bool:
    """Whether a text could be a hub id: two words with a slash between them, perhaps with a revision."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?", source) is not None


def download(hub_id: str) -> Path:
    """Return the folder of a published model in the hub's cache, with its config, its weights and its tokenizer only.

    Files of torch.save are downloaded only if the model has no safetensors.
    """
    folder = _download(hub_id, (CONFIG, INDEX, "*.safetensors", *COMPANIONS))
    if not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        same_commit = f"{hub_id.partition('@')[0]}@{folder.name}"
        folder = _download(same_commit, (PICKLED, PICKLED_INDEX, "pytorch_model-*.bin"))
    return folder


def download_config(hub_id: str) -> Path:
    """Return the folder of a published model in the hub's cache, with its config only."""
    return _download(hub_id, (CONFIG,))


def origin_of(folder: Path, source: str) -> str:
    """Return where a model comes from: the full path of its folder, or its hub id with the commit that was read."""
    if folder.parent.name != "snapshots" or not is_hub_id(source):
        return str(real_path(folder))
    return f"{source.partition('@')[0]}@{folder.name}"


def _download(hub_id: str, files: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f"{hub_id}: no such file or folder; as a hub id it needs the extra `hub`: pip install 'archlab[hub]'"
        ) from None
    name, _, revision = hub_id.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(files)))
    except Exception as error:  # of many libraries: no network, no such model, no access, no space
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{hub_id}: no such file or folder, and the Hugging Face hub does not give it: {reason}"
        ) from None
