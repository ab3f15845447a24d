"""Trained models from their folders."""

from pathlib import Path

from tokenizers import Tokenizer

from archlab.config.io import load_config
from archlab.config.schema import Config
from archlab.data import tokenizer as bpe
from archlab.data.shards import TOKENIZER
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.train.checkpoint import latest_checkpoint, load_weights


def from_pretrained(folder: str | Path) -> Decoder:
    """The model of a run folder at its last checkpoint, ready for inference; UserError when there is none."""
    path = Path(folder)
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path}: not a run folder (no config.yaml); `archlab train` makes one")
    return load_model(path, load_config(path))


def load_model(run: Path, config: Config) -> Decoder:
    """The last checkpoint of a run folder in a model of `config`, which must fit it."""
    latest = latest_checkpoint(run / "checkpoints")
    if latest is None:
        raise UserError(f"{run}: no checkpoint yet; train it first")
    model = Decoder(config.model)
    load_weights(latest[1], model)
    return model.eval()


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer that a run was trained with."""
    return bpe.load(Path(folder) / TOKENIZER)
