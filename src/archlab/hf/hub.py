"""Published models by their hub id, `organisation/name` or `organisation/name@revision`.

It needs network and the extra `hub`. A revision is a branch, a tag or a commit of the model's repository.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from archlab.errors import UserError
from archlab.files import real_path
from archlab.hf.folder import COMPANIONS, CONFIG, INDEX, PICKLED, PICKLED_INDEX, WEIGHTS


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
