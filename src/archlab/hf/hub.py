"""Published models by their hub id, `organisation/name`; needs network and the extra `hub`."""

import re
from collections.abc import Sequence
from pathlib import Path

from archlab.errors import UserError
from archlab.hf.folder import COMPANIONS, CONFIG, INDEX


def is_hub_id(source: str) -> bool:
    """Whether it could be one: two words with a slash between them."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source) is not None


def download(hub_id: str) -> Path:
    """The folder of a published model in the hub's cache: config, safetensors and tokenizer, nothing else."""
    return _download(hub_id, (CONFIG, INDEX, "*.safetensors", *COMPANIONS))


def download_config(hub_id: str) -> Path:
    """As `download`, with nothing but the config.json."""
    return _download(hub_id, (CONFIG,))


def _download(hub_id: str, files: Sequence[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f"{hub_id}: no such file or folder; as a hub id it needs the extra `hub`: pip install 'archlab[hub]'"
        ) from None
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(files)))
    except Exception as error:  # of many libraries: no network, no such model, no access, no space
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{hub_id}: no such file or folder, and the Hugging Face hub does not give it: {reason}"
        ) from None
