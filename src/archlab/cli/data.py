"""`archlab data`."""

import re
from pathlib import Path
from typing import Annotated

from archlab.cli.arguments import AtLeastOne, Flag, MayBeginWithDash
from archlab.config.core.text import note
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
) -> None:
    """Turn text into a folder of token shards.

    Parameters
    ----------
    src
        Text files, folders, globs, JSONL, Parquet, python-stdlib, or hf:NAME of the Hugging Face hub.
    out
        The data folder, for data.path.
    vocab_size
        Of the byte-level BPE that is learned; 2048 when left out.
    tokenizer
        A tokenizer.json to use instead, or the folder with it: byte-level or SentencePiece-style. The files beside it
        name the token that precedes each document.
    held_out
        Share of the text in one fold; data.fold says which one is kept for evaluation.
    field
        Where records of JSONL, Parquet or Arrow have their text; `text` when left out. `meta.body` is the field `body`
        of the field `meta`.
    template
        Several fields in one text, as in '{title}\\n\\n{meta.body}'. `\\n` and `\\t` are a line's end and a tab, `{{`
        and `}}` are braces.
    skip_invalid
        Leave out records and files that cannot be read. They are counted, and the first few are named.
    workers
        How many tokenise at once: threads, or processes where it must be the tokenizers library; one per core when left
        out.
    """
    how = _template(field, template)
    made = prepare(list(src), out, vocab_size, tokenizer, held_out, how, skip_invalid, workers or cores(), shown)
    print(made)
    if tokenizer:
        names = " ".join(str(made.tokenizer.id_to_token(i)) for i in made.document_tokens)
        note(f"each document begins with {names}")
    if vocab_size and made.manifest.vocab_size < vocab_size:
        note(f"the text has no more than {made.manifest.vocab_size:,} tokens of {vocab_size:,} to learn")
    print(out)


def _template(field: str | None, template: str | None) -> TextTemplate:
    if template is None:
        return TEXT if field is None else TextTemplate((field,))
    if field is not None:
        raise UserError("--field and --template: give one; a template names its fields")
    return TextTemplate.parse(re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], "\\"), template))
