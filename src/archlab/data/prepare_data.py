"""Preparation of a data folder, as `archlab data` does it."""

from collections.abc import Sequence
from pathlib import Path

from archlab.config.check import validate
from archlab.config.schema import DataConfig
from archlab.data.prepare import prepare
from archlab.data.shards import DataFolder
from archlab.data.template import record_template
from archlab.errors import UserError, check_at_least
from archlab.machine import cores


def prepare_data(
    *sources: str | Path,
    out: str | Path,
    vocab_size: int | None = None,
    tokenizer: str | Path | None = None,
    held_out: float = 0.05,
    field: str | None = None,
    template: str | None = None,
    skip_invalid: bool = False,
    workers: int | None = None,
    reserve: str | Sequence[str] = (),
    pairs: str | Sequence[str] | None = None,
    seq_len: int | None = None,
    chat: str | Sequence[str] | None = None,
) -> DataFolder:
    """Tokenize text, and write the tokens as shards into a data folder. Progress is printed to stderr.

    - `sources`: text files, folders, globs, JSONL or Parquet files, `python-stdlib`, `python-docs`, or `hf:NAME` for a
      dataset of the Hugging Face hub.
    - `out`: the data folder to write. A config names it in `data.path`.
    - `vocab_size`: vocabulary size of the byte-level BPE that is trained on the text. None means 2048.
    - `tokenizer`: a tokenizer.json, or its folder. None means to train one.
    - `held_out`: fraction of the text that is held out for evaluation. `data.fold` selects which part it is.
    - `field`: field of a record that contains the text. `meta.body` is a field of a nested record. None means `text`.
    - `template`: text that combines several fields, such as `{title}: {meta.body}`.
    - `skip_invalid`: whether to leave out records and files that cannot be read. The manifest counts them.
    - `workers`: number of threads or processes that tokenize. None means one per core.
    - `reserve`: special tokens to add for the training objective, such as `mask` or `sentinels:100`.
      Names are a sequence, or a text with commas.
    - `pairs`: two fields with a source and its target, such as `en,de`.
    - `seq_len`: length of the windows (`train.seq_len`). Each pair or conversation must fit into one. None means that
      they may have any length.
    - `chat`: a field with a list of messages, or two fields with a prompt and its response. It needs a `tokenizer` with
      a chat template.

    If `out` already contains this data, check its bytes and open it. Raise UserError if it contains anything else, if a
    source cannot be read, or if arguments exclude each other. Messages name arguments like the options of
    `archlab data`.

    >>> data = archlab.prepare_data("text.txt", out="data/a", vocab_size=300)
    >>> data.manifest.vocab_size, data.manifest.invalid
    (300, 0)
    """
    check_at_least(1, vocab_size=vocab_size, workers=workers, seq_len=seq_len)
    records = record_template(field, template, _names(pairs), _names(chat))
    if seq_len and pairs is None and chat is None:
        raise UserError(
            "--seq-len limits the length of pairs and conversations; give --pairs or --chat, or leave it out"
        )
    added = validate(DataConfig, {"reserve": _names(reserve or ())}, "--reserve").reserve
    return prepare(
        [str(source) for source in sources],
        Path(out),
        vocab_size=vocab_size,
        tokenizer=None if tokenizer is None else Path(tokenizer),
        held_out=held_out,
        template=records,
        skip_invalid=skip_invalid,
        workers=workers or cores(),
        reserve=added,
        seq_len=seq_len,
        prints=True,
    )


def _names(names: str | Sequence[str] | None) -> Sequence[str] | None:
    return names.split(",") if isinstance(names, str) else names
