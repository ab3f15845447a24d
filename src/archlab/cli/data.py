"""The command `archlab data`."""

import re
from pathlib import Path
from typing import Annotated

from archlab.cli.arguments import AtLeastOne, Flag, MayBeginWithDash
from archlab.config.check import validate
from archlab.config.core.text import note
from archlab.config.schema import DataConfig
from archlab.data.prepare import prepare, shown
from archlab.data.template import TEXT, ChatFields, PairFields, RecordTemplate, TextTemplate
from archlab.errors import UserError
from archlab.machine import cores
from archlab.pricing.units import plural


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
        Text files, folders, globs, JSONL or Parquet files, `python-stdlib` (the source files of Python's standard
        library), or hf:NAME for a dataset of the Hugging Face hub.
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
    texts = _records(field, template, pairs, chat)
    if seq_len and pairs is None and chat is None:
        raise UserError(
            "--seq-len limits the length of pairs and conversations; give --pairs or --chat, or leave it out"
        )
    added = validate(DataConfig, {"reserve": reserve.split(",") if reserve else []}, "--reserve").reserve
    prepared = prepare(
        list(src), out, vocab_size, tokenizer, held_out, texts, skip_invalid, workers or cores(), shown, added, seq_len
    )
    print(prepared)
    if tokenizer and chat is None:
        names = " ".join(str(prepared.tokenizer.id_to_token(i)) for i in prepared.document_tokens)
        note(f"each document begins with {names}")
    if vocab_size and prepared.manifest.vocab_size < vocab_size:
        note(f"--vocab-size is {vocab_size:,}, but BPE on this text ends at {prepared.manifest.vocab_size:,} tokens")
    print(out)


def _records(field: str | None, template: str | None, pairs: str | None, chat: str | None) -> RecordTemplate:
    if pairs is not None and chat is not None:
        raise UserError("--pairs and --chat cannot be combined; give one of the two")
    if chat is None:
        return _template(field, template) if pairs is None else _pairs(pairs, field, template)
    if field is not None or template is not None:
        raise UserError("--chat cannot be combined with --field or --template; it names the fields itself")
    fields = chat.split(",")
    if not all(fields) or len(set(fields)) != len(fields) or len(fields) > 2:
        raise UserError(
            f"--chat {chat}; allowed: one field with messages, as in messages, or two with a comma between them, as in "
            "prompt,completion"
        )
    return ChatFields(tuple(fields))


def _pairs(pairs: str, field: str | None, template: str | None) -> PairFields:
    if field is not None or template is not None:
        raise UserError("--pairs cannot be combined with --field or --template; it names the fields itself")
    if (n := len(pairs.split(","))) != 2:
        raise UserError(
            f"--pairs {pairs} names {plural(n, 'field')}; allowed: two with a comma between them, as in en,de"
        )
    fields = validate(DataConfig, {"pairs": pairs.split(",")}, "--pairs").pairs
    assert fields is not None
    return PairFields(fields)


def _template(field: str | None, template: str | None) -> TextTemplate:
    if template is None:
        return TEXT if field is None else TextTemplate((field,))
    if field is not None:
        raise UserError("--field and --template cannot be combined; a template names its fields")
    return TextTemplate.parse(
        re.sub(r"\\([nt\\])", lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], "\\"), template)
    )
