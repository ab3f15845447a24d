"""Files that a run gets from the tokenizer of its data."""

from pathlib import Path

from archlab.data.tokenizer import TOKENIZER
from archlab.hf.chat_template import ChatTemplate
from archlab.hf.folder import companions
from archlab.hf.imported import imported
from archlab.hf.special_tokens import TOKENIZER_CONFIG


def tokenizer_files(tokenizer: Path | None, run: Path) -> dict[str, str | bytes]:
    """Return the files for a new run: the tokenizer of its data, and the chat template if the data has one. Empty if
    the data has no tokenizer.

    An imported model keeps its own tokenizer, which is the same. Its chat template is replaced.
    """
    if tokenizer is None:
        return {}
    files: dict[str, str | bytes] = {} if imported(run) else {TOKENIZER: tokenizer.read_bytes()}
    if template := ChatTemplate.of(tokenizer.parent):
        files |= template.files(companions(run, (TOKENIZER_CONFIG,)), run)
    return files
