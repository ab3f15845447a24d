"""The command `archlab data`."""

import re
from pathlib import Path
from typing import Annotated

from archlab.cli.arguments import AtLeastOne, Flag, MayBeginWithDash
from archlab.config.check import validate
from archlab.config.core.text import note
from archlab.config.schema import DataConfig
from archlab.data.contents import TEXT, TextTemplate
from archlab.data.prepare import prepare, shown
from archlab.errors import UserError
from archlab.machine import cores


def run(
    *src: str,
    out: Path,
    vocab_size: AtLeastOne | None = None,
    tokenizer: Path | None = None,
    held_out: float = 0.05,
    field: str | None = None,
    template: Annotated[str, MayBeginWithDash] | None = None,
    skip_invalid: Flag = False,
    workers: AtLeastOne | None = None,
    reserve: str | None = None,
) -> None:
    """Tokenize text, and write the tokens as shards into a data folder.

    Parameters
    ----------
    src
        Text files, folders, globs, JSONL or Parquet files, `python-stdlib` (the source files of Python's standard
        library), or hf:NAME for a dataset of the Hugging Face hub.
    out
        The data folder to write. A config names it in data.path.
    vocab_size
        Vocabulary size of the tokenizer (byte-level BPE) that is trained on the text. Default: 2048.
    tokenizer
        Use this tokenizer.json, or the one in this folder, instead of training one. It must be byte-level or
        SentencePiece-style. Each document begins with special tokens that are read from the tokenizer.json and from the
        files beside it, such as tokenizer_config.json.
    held_out
        Fraction of the text that is held out for evaluation. data.fold selects which part is held out.
    field
        Field that contains the text in records of JSONL, Parquet or Arrow. `meta.body` is the field `body` inside
        the field `meta`. Default: the field `text`.
    template
        Combine several fields into one text, as in '{title}\\n\\n{meta.body}'. `\\n` is a newline and `\\t` a tab; `{{`
        and `}}` are braces.
    skip_invalid
        Skip records and files that cannot be read. Print their number, and the names of the first few.
    workers
        Number of threads or processes that tokenize. Default: one per core.
    reserve
        Special tokens to add to the tokenizer for the training objective: `mask`, `sentinels:100` for 100 sentinels,
        `mode:R` for the mode token [R], or several of them, as in mask,sentinels:100.
    """
    texts = _template(field, template)
    added = validate(DataConfig, {"reserve": reserve.split(",") if reserve else []}, "--reserve").reserve
    prepared = prepare(
        list(src), out, vocab_size, tokenizer, held_out, texts, skip_invalid, workers or cores(), shown, added
    )
    print(prepared)
    if tokenizer:
        names = " ".join(str(prepared.tokenizer.id_to_token(i)) for i in prepared.document_tokens)
        note(f"each document begins with {names}")
    if vocab_size and prepared.manifest.vocab_size < vocab_size:
        note(f"--vocab-size is {vocab_size:,}, but BPE on this text ends at {prepared.manifest.vocab_size:,} tokens")
    print(out)


def _template(field: str | None, template: str | None) -> TextTemplate:
    if template is None:
        return TEXT if field is None else TextTemplate((field,))
    if field is not None:
        raise UserError("--field and --template cannot be combined; a template names its fields")
    return TextTemplate.parse(
        re.sub(r"\\([nt\\])", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], "\\"), template)
    )
