"""`archlab data`."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne
from archlab.config.text import note
from archlab.cores import cores
from archlab.data.corpus import FIELD
from archlab.data.prepare import prepare
from archlab.data.progress import shown


def run(
    *src: str,
    out: Path,
    vocab_size: AtLeastOne | None = None,
    tokenizer: Path | None = None,
    held_out: float = 0.05,
    field: str = FIELD,
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
        Where records of JSONL or Parquet have their text.
    workers
        How many tokenise at once: threads, or processes where it must be the tokenizers library; one per core when left
        out.
    """
    made = prepare(list(src), out, vocab_size, tokenizer, held_out, field, workers or cores(), shown)
    print(made)
    if tokenizer:
        names = " ".join(str(made.tokenizer.id_to_token(i)) for i in made.document_tokens)
        note(f"each document begins with {names}")
    if vocab_size and made.manifest.vocab_size < vocab_size:
        note(f"the text has no more than {made.manifest.vocab_size:,} tokens of {vocab_size:,} to learn")
    print(out)
