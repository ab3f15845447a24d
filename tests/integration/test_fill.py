"""Filling in masked tokens, compared with the pipeline of transformers."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from archlab.cli import app
from archlab.config.io import build_config
from archlab.errors import UserError
from archlab.infer.fill import fill
from archlab.infer.load import from_pretrained
from archlab.model.decoder import Decoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "a", "dog", "##s", "ran", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with random weights and a WordPiece tokenizer, as transformers saves them."""
    where = tmp_path_factory.mktemp("bert")
    ids = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.BertTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", pad_token="[PAD]",
        unk_token="[UNK]",
    ).save_pretrained(where)  # fmt: skip
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(where)
    return where


@pytest.mark.parametrize("text", ["The [MASK] sat on the mat.", "[MASK] dogs ran on a [MASK]"])
def test_the_predictions_are_those_of_the_pipeline(folder: Path, text: str) -> None:
    pipeline = transformers.pipeline("fill-mask", model=str(folder), tokenizer=str(folder), top_k=4)
    theirs = pipeline(text)
    theirs = theirs if text.count("[MASK]") > 1 else [theirs]
    ours = fill(from_pretrained(folder), text, 4)
    assert [[guess.token for guess in guesses] for guesses in ours] == [[t["token"] for t in row] for row in theirs]
    for guesses, row in zip(ours, theirs, strict=True):
        assert [guess.probability for guess in guesses] == pytest.approx([t["score"] for t in row], rel=1e-4)


def test_the_command_prints_a_row_for_each_prediction(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fill", str(folder), "--text", "The [MASK] sat.", "--top", "3"]
    assert app.main([*arguments, "--json"]) == 0
    (guesses,) = json.loads(capsys.readouterr().out)
    assert app.main(arguments) == 0
    table = capsys.readouterr().out
    assert len(guesses) == 3
    assert all(guess["text"] in table and f"{guess['probability']:.1%}" in table for guess in guesses)


def test_only_tokens_of_the_tokenizer_are_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The vocabulary of a model may be larger than its tokenizer, for example to be a multiple of 64."""
    words = ["[UNK]", "[MASK]", "the", "\n", "  ", "cat"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, mask_token="[MASK]", unk_token="[UNK]"
    ).save_pretrained(tmp_path)
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=16, initializer_range=0.5,
    )  # fmt: skip
    theirs = transformers.BertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        p_V = theirs(torch.tensor([[2, 1]])).logits[0, 1].softmax(-1)
    assert int(p_V.argmax()) >= len(words)
    (guesses,) = fill(from_pretrained(tmp_path), "the [MASK]", 20)
    assert [guess.token for guess in guesses] == p_V[: len(words)].argsort(descending=True).tolist()
    assert [guess.probability for guess in guesses] == pytest.approx(p_V[[g.token for g in guesses]].tolist(), rel=1e-4)
    assert {guess.token: guess.text for guess in guesses} == dict(enumerate(words))
    assert app.main(["fill", str(tmp_path), "--text", "the [MASK]", "--top", "20", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert r"'\n'" in out
    assert "'  '" in out


def test_texts_and_models_that_cannot_be_filled_are_refused(folder: Path) -> None:
    model = from_pretrained(folder)
    with pytest.raises(UserError, match=r"the text has no mask token; write \[MASK\] where"):
        fill(model, "The cat sat.")
    with pytest.raises(UserError, match="learned positions end at max_seq_len = 16"):
        fill(model, "[MASK] " * 20)
    causal = Decoder(build_config({"model": model.config.model_dump()}, ["model.attention.visibility=causal"]).model)
    with pytest.raises(UserError, match=r"model.attention.visibility is causal or prefix.*archlab generate"):
        fill(causal, "The [MASK] sat.")
