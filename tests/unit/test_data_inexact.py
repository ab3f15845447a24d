"""Tokenizers whose tokens do not represent every byte of a text, such as BERT's."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from archlab.data import tokenizer as bpe
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.data.prepare import prepare
from archlab.errors import UserError
from archlab.infer.load import load_codec
from archlab.training.callback import Callback
from archlab.training.train import train
from scores import score
from tiny import config

pytestmark = pytest.mark.usefixtures("shared_cache")

MASKED = ("model.attention.visibility=two_sided", "train.objective.kind=masked")


@pytest.fixture
def word_pieces(text: Path, tmp_path: Path) -> Path:
    """Return a tokenizer like BERT's, which loses upper case and blanks."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.decoder = normalizers.BertNormalizer(lowercase=True), decoders.WordPiece()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train([str(text)], trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False))
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_masked_model_reads_text_that_its_tokenizer_changes(word_pieces: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "upper.txt").write_text(text.read_text().title() + "☃")
    sources = [str(text), str(tmp_path / "upper.txt")]
    data = prepare(sources, tmp_path / "data", tokenizer=word_pieces, held_out=0.2)
    assert data.manifest.inexact == "its decoder (WordPiece) is neither byte-level nor SentencePiece's"
    ids = np.concatenate([tokens.read(0, len(tokens)) for tokens in (data.train, data.held_out)])
    unknown, begins = (data.tokenizer.token_to_id(name) for name in ("[UNK]", "[CLS]"))
    assert (ids == unknown).sum() == 1
    assert (ids == begins).sum() == sum(part.documents for part in data.manifest.parts)
    assert data.tokenizer.decode(data.train.read(0, 9).tolist()) in text.read_text().lower().replace("\n", " ")
    settings = config(*MASKED, data=tmp_path / "data")
    held_out = Batches.of(settings, open_training_data(settings.data, 300)).held_out(16, None)
    assert (held_out.measure, held_out.windows.bytes) == ("denoising_loss", None)
    assert (held_out.windows.scored == (held_out.windows.tokens[:, 1:] != begins)).all()
    train(settings, tmp_path / "run", Callback())
    assert score(str(tmp_path / "run"), (), None).denoising_loss is not None
    codec = load_codec(tmp_path / "run")
    mask = data.tokenizer.token_to_id("[MASK]")
    assert codec.source("the [MASK]")[-1] == mask
    decode = codec.decoder([begins])
    assert "".join(map(decode, data.train.read(1, 9).tolist())).strip() in text.read_text().replace("\n", " ")
    with pytest.raises(
        UserError, match=r"next_token is scored in bits per byte, .*\(WordPiece\).*; allowed: masked, sp"
    ):
        train(config(data=tmp_path / "data"), tmp_path / "other", Callback())
    assert not (tmp_path / "other").exists()


def test_a_lowercasing_tokenizer_is_exact_for_text_without_capitals(tmp_path: Path) -> None:
    """The kind of the tokenizer does not decide: all text is compared with its tokens."""
    tokenizer = bpe.train(["plain text\n"], 300)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name, line in (("lower", "plain text\n"), ("upper", "Plain text\n")):
        (tmp_path / f"{name}.txt").write_text(line * 100)
        prepare([str(tmp_path / f"{name}.txt")], tmp_path / name, tokenizer=tmp_path / "tokenizer.json", held_out=0.2)
    lower = open_training_data(config(data=tmp_path / "lower").data, 300)
    assert Batches.of(config(), lower).held_out(16, None).bytes is not None
    upper = open_training_data(config(data=tmp_path / "upper").data, 300)
    with pytest.raises(UserError, match=r"upper\.txt: the tokenizer changes its text \('Plain text"):
        Batches.of(config(), upper).held_out(16, 64)
