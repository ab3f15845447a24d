"""The command `archlab data`."""

import re
from pathlib import Path
from typing import Annotated

from archlab.cli.arguments import AtLeastOne, Flag, MayBeginWithDash
from archlab.config.core.text import note
from archlab.data.prepare_data import prepare_data


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
    pairs: str | None = None,
    seq_len: AtLeastOne | None = None,
    chat: str | None = None,
) -> None:
    """Tokenize text, and write the tokens as shards into a data folder.

    Parameters
    ----------
    src
        Text files, folders, globs, JSONL or Parquet files, or hf:NAME for a dataset of the Hugging Face hub.
        `python-stdlib` is the source code of Python's standard library. `python-docs` is English text from the
        documentation of Python packages.
    out
        The data folder to write. A config names it in data.path.
    vocab_size
        Vocabulary size of the tokenizer (byte-level BPE) that is trained on the text. Default: 2048.
    tokenizer
        Use this tokenizer.json, or the one in this folder, instead of training one. Bits per byte need a byte-level or
        SentencePiece-style tokenizer that does not change the text. Each document begins with special tokens that are
        read from the tokenizer.json and from the files beside it, such as tokenizer_config.json.
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
        Special tokens to add to the tokenizer for the training objective: `mask`, `sentinels:100` for 100 sentinels, or
        `mode:R` for the mode token [R]. Separate several of them by commas, as in mask,sentinels:100.
    pairs
        Read pairs of a source and a target from two fields of the records, as in en,de. In a .tsv file, the fields are
        names in the first line. Two numbers, as in 1,2, are columns of a .tsv file that has no line of names.
    seq_len
        Length of the windows (train.seq_len). Source and target must each fit into half a window, and a conversation
        into a window; longer ones are invalid. Default: no limit.
    chat
        Read conversations for fine-tuning, from one field with a list of messages, as in messages, or from two fields
        with a prompt and its response, as in prompt,completion. Needs --tokenizer FOLDER, whose chat template makes the
        text. Only the tokens of responses count in the loss.
    """
    prepared = prepare_data(
        *src,
        out=out,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        held_out=held_out,
        field=field,
        template=None if template is None else _unescaped(template),
        skip_invalid=skip_invalid,
        workers=workers,
        reserve=reserve or (),
        pairs=pairs,
        seq_len=seq_len,
        chat=chat,
    )
    print(prepared)
    if tokenizer and chat is None:
        names = " ".join(str(prepared.tokenizer.id_to_token(i)) for i in prepared.document_tokens)
        note(f"each document begins with {names}")
    if vocab_size and prepared.manifest.vocab_size < vocab_size:
        note(f"--vocab-size is {vocab_size:,}, but BPE on this text ends at {prepared.manifest.vocab_size:,} tokens")
    print(out)


def _unescaped(template: str) -> str:
    return re.sub(r"\\([nt\\])", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], "\\"), template)
