"""Files that a run gets from the tokenizer of its data."""

from collections.abc import Mapping
from pathlib import Path

from archlab.hf.chat_template import ChatTemplate
from archlab.hf.folder import TOKENIZER, companions
from archlab.hf.imported import imported
from archlab.hf.special_tokens import TOKENIZER_CONFIG


def tokenizer_files(
    tokenizer: Path | None, run: Path, published: Mapping[str, bytes] | None = None
) -> dict[str, str | bytes]:
    """Return the files for a new run: the tokenizer of its data, and the chat template if the data has one.

    `published` holds the files of the published model from which the run begins. Such a model, like an imported one,
    keeps its own tokenizer, which is the same. Its chat template is replaced.
    """
    files: dict[str, str | bytes] = {} if imported(run) else dict(published or {})
    if tokenizer is None:
        return files
    if not imported(run) and TOKENIZER not in files:
        files[TOKENIZER] = tokenizer.read_bytes()
    if template := ChatTemplate.of(tokenizer.parent):
        before = {**companions(run, (TOKENIZER_CONFIG,)), **(published or {})}
        files |= template.files(before, run)
    return files
