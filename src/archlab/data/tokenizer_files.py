"""Files that a run gets from the tokenizer of its data."""

from collections.abc import Mapping
from pathlib import Path

from archlab.hf.chat_template import ChatTemplate
from archlab.hf.folder import CHAT_TEMPLATE, SPECIAL_TOKENS_MAP, TOKENIZER, TOKENIZER_CONFIG, companions
from archlab.hf.imported import imported


def tokenizer_files(
    tokenizer: Path | None, run: Path, published: Mapping[str, bytes] | None = None
) -> dict[str, str | bytes]:
    """Return the files for a new run: the tokenizer of its data, and the chat template if the data has one.

    `published` holds the files of the published model from which the run begins. Such a model, like an imported one,
    keeps its own tokenizer, which is the same. Its default chat template is replaced.
    """
    files: dict[str, str | bytes] = {} if imported(run) else dict(published or {})
    if tokenizer is None:
        return files
    if not imported(run) and TOKENIZER not in files:
        files[TOKENIZER] = tokenizer.read_bytes()
    before = {**companions(run, (CHAT_TEMPLATE, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)), **(published or {})}
    if (template := ChatTemplate.of(tokenizer.parent)) and template != ChatTemplate.from_files(before, run):
        files |= template.files(before, run)
    return files
