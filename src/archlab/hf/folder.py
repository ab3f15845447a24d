"""Hugging Face folders: their files, and the download of published models from the hub.

When archlab reads a folder, it refuses paths and links to files outside the folder. A hub id is `organization/name` or
`organization/name@revision`. A revision is a branch, a tag or a commit of the model's repository. A download needs a
network connection and the extra `hub`.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from archlab.config.core.merge import Raw
from archlab.errors import UserError
from archlab.extras import needs_extra
from archlab.files import LARGE_TEXT_LIMIT, MEBIBYTE, read_bytes, read_object, real_path

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
"""Names of the config file, of a single weights file, and of the index. The index says which of several weights files
contains each tensor."""

PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
"""Names of the weights file and of the index in the older torch.save format. archlab reads them if the folder has no
safetensors file."""

TOKENIZER = "tokenizer.json"
"""Name of the file of a tokenizer, also in run folders and data folders."""

TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, GENERATION_CONFIG = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
)  # fmt: skip
"""Names of other files with special tokens. `special_tokens.py` explains which tokens come from which file."""

CHAT_TEMPLATE = "chat_template.jinja"
"""Name of the file of a chat template."""

COMPANIONS = (
    TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS, "tokenizer.model",
    "vocab.json", "merges.txt", CHAT_TEMPLATE, GENERATION_CONFIG, "spiece.model",
    "sentencepiece.bpe.model", "source.spm", "target.spm",
)  # fmt: skip
"""Names of files, besides config and weights, that are copied unchanged when a model is saved."""

NAMED_TEMPLATES = "additional_chat_templates"
"""Name of the folder with chat templates for special purposes, such as `tool_use.jinja`. They are copied as well."""


def is_hf_folder(folder: Path) -> bool:
    """Return whether the folder contains a config.json and is therefore a Hugging Face folder. A run folder contains no
    config.json."""
    return (folder / CONFIG).is_file()


def has_weights(folder: Path) -> bool:
    """Return whether the folder contains a weights file that archlab reads, or an index of several weights files."""
    return any((folder / name).is_file() for name in (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX))


def companions(folder: Path, names: Sequence[str] = COMPANIONS) -> dict[str, bytes]:
    """Return file contents by file name, for the files in `names` that exist in the folder.

    If `names` includes the chat template, the named chat templates are returned as well.
    """
    files = {name: read_bytes(own_file(folder, name), LARGE_TEXT_LIMIT) for name in names if (folder / name).is_file()}
    if CHAT_TEMPLATE in names and (folder / NAMED_TEMPLATES).is_dir():
        home = own_file(folder, NAMED_TEMPLATES)
        for name in sorted(path.name for path in home.glob("*.jinja") if path.is_file()):
            files[f"{NAMED_TEMPLATES}/{name}"] = read_bytes(own_file(home, name), LARGE_TEXT_LIMIT)
    return files


def homes(folder: Path) -> tuple[Path, ...]:
    """Return the folders in which the files of `folder` may lie: its real path and, in the hub's cache, the `blobs`
    folder to which its links point."""
    home = real_path(folder)
    revision = next((path for path in (home, *home.parents) if path.parent.name == "snapshots"), None)
    return (home, revision.parent.parent / "blobs") if revision else (home,)


def own_file(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder.

    Raise UserError if `name` or a link leads out of the folder. In the hub's cache, links from snapshots/REVISION/ to
    blobs/ of the same model are allowed.
    """
    file = folder / name
    if PurePath(name).name != name or "\0" in name or real_path(file).parent not in homes(folder):
        raise UserError(f"{folder}: {name!r} is not a file of this folder")
    return file


def read_json(file: Path, limit: int = MEBIBYTE) -> Raw:
    """Return the JSON object in a file. If it cannot be read, raise a UserError that names the file."""
    return read_object(own_file(file.parent, file.name), limit)


def is_hub_id(source: str) -> bool:
    """Return whether the text has the form of a hub id: two words separated by a slash, with an optional revision."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?", source) is not None


def download(hub_id: str) -> Path:
    """Download the config, weights and tokenizer of a published model, and return the folder in the hub's cache.

    torch.save files are downloaded only if the model has no safetensors files.
    """
    folder = _download(hub_id, (CONFIG, INDEX, "*.safetensors", *COMPANIONS, f"{NAMED_TEMPLATES}/*.jinja"))
    if not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        same_commit = f"{hub_id.partition('@')[0]}@{folder.name}"
        folder = _download(same_commit, (PICKLED, PICKLED_INDEX, "pytorch_model-*.bin"))
    return folder


def download_config(hub_id: str) -> Path:
    return _download(hub_id, (CONFIG,))


def origin_of(folder: Path, source: str) -> str:
    """Return the origin of a model: the full path of its folder, or its hub id with the commit that was downloaded."""
    if folder.parent.name != "snapshots" or not is_hub_id(source):
        return str(real_path(folder))
    return f"{source.partition('@')[0]}@{folder.name}"


def _download(hub_id: str, files: Sequence[str]) -> Path:
    with needs_extra("hub", f"{hub_id}: no such file or folder; to download a hub id, archlab"):
        from huggingface_hub import snapshot_download
    name, _, revision = hub_id.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(files)))
    except Exception as error:  # many libraries raise errors: no network, unknown model, no access, full disk
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{hub_id}: no such file or folder, and the download from the Hugging Face hub failed: "
            f"{reason.removeprefix('Got: ').rstrip('.')}; check the hub id and the network connection, or name a folder"
        ) from None
