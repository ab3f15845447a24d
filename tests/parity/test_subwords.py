"""Bits per byte with SentencePiece-style tokenizers, compared with transformers.

The expected value is the log-probability of whole documents divided by the bytes of their text.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import archlab
from archlab.cli.app import main
from archlab.config.objective import NextToken
from archlab.data.objectives import Batches
from archlab.data.shards import DataFolder
from archlab.data.text_data import TextData, TextSource
from archlab.data.tokenizer import load
from archlab.exchange.configs import load_config
from archlab.hf.folder import TOKENIZER
from archlab.infer.load import load_model
from archlab.training.device import choose_device
from archlab.training.evaluate import predict
from subwords import KINDS, TEXTS, bpe_parts
from tests.parity.test_exchange import TRAIN

torch.set_num_threads(1)

VOCAB = 400
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def transformers_tokenizer(kind: str, file: Path) -> Any:
    """Return the tokenizer of transformers' own class, built without our file if there is such a class."""
    if kind == "llama_5":
        vocab, merges = bpe_parts()
        return transformers.LlamaTokenizerFast(vocab=vocab, merges=merges)
    if kind == "gemma":
        vocab, merges = bpe_parts()
        return transformers.GemmaTokenizerFast(
            vocab=vocab, merges=merges, bos_token="<s>", eos_token="</s>", pad_token="<unk>", mask_token="<unk>"
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), unk_token="<unk>", eos_token="</s>")


def documents(kind: str) -> list[str]:
    """Return texts that the tokenizer reproduces. Some start with whitespace, which it must not mistake for its own space."""
    if kind == "t5":
        return [
            " ".join(
                random.Random(n).choices(["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"], k=9)
            )
            for n in range(60)
        ]
    words = [word for text in TEXTS for word in text.split(" ") if word]
    texts = [" ".join(random.Random(n).choices(words, k=9)) for n in range(60)]
    return [
        ("\n" if n % 5 == 0 else " " if n % 5 == 1 and kind in ("llama_2", "gemma") else "") + text
        for n, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that makes the folders of a model and of data once for each kind."""
    folders: dict[str, tuple[Path, Path]] = {}

    def make(kind: str) -> tuple[Path, Path]:
        if kind not in folders:
            home = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.copy_(torch.randn_like(parameter) * 0.3)
            model.save_pretrained(home / "hf")
            KINDS[kind]().save(str(home / "hf" / TOKENIZER))
            (home / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(kind)))
            command = [
                "data",
                home / "text.jsonl",
                "--out",
                home / "data",
                "--tokenizer",
                home / "hf",
                "--held-out",
                0.3,
            ]
            assert main([str(part) for part in command]) == 0
            folders[kind] = home / "hf", home / "data"
        return folders[kind]

    return make


@pytest.mark.parametrize("kind", ["llama_2", "llama_5", "gemma", "t5"])
def test_each_document_has_the_bits_of_transformers_and_the_bytes_of_its_text(kind: str, made: Any) -> None:
    folder, data = made(kind)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).double()
    tokenizer = transformers_tokenizer(kind, folder / TOKENIZER)
    opened = DataFolder.open(data)
    text = TextData([TextSource("text", opened)])
    config = load_config(str(folder), "train.device=cpu", "train.dtype=float32")
    held_out = Batches(text, NextToken(), document_mask=True).held_out(len(opened.held_out) - 1, None)
    ours = predict(load_model(folder), held_out, choose_device(config.train), 10**6)
    found = ours.by_document(held_out, text.beginnings(held_out.windows))
    texts = {tuple(tokenizer(text, add_special_tokens=False).input_ids): text for text in documents(kind)}
    ids, end = opened.held_out.read(0, len(opened.held_out)).tolist(), opened.manifest.end_of_text
    starts = [n for n, i in enumerate(ids) if i == end]
    parts = [ids[start + 1 : stop] for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True)]
    assert len(found) == len(parts) > 8
    total_bits = total_bytes = 0.0
    for document, part in zip(found, parts, strict=True):
        n_bytes = len(texts[tuple(part)].encode())
        with torch.no_grad():
            logits = theirs(torch.tensor([[end, *part]])).logits[0, :-1].log_softmax(-1)
        bits = -logits.gather(-1, torch.tensor(part)[:, None]).sum().item() / math.log(2)
        assert document.bytes == n_bytes
        assert document.bits == pytest.approx(bits, rel=1e-5)
        total_bits, total_bytes = total_bits + bits, total_bytes + n_bytes
    assert ours.score(held_out).bits_per_byte == pytest.approx(total_bits / total_bytes, rel=1e-5)


@pytest.mark.parametrize("kind", ["llama_2", "t5"])
def test_a_published_model_is_scored_imported_and_trained_with_its_tokenizer(
    kind: str, made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = made(kind)
    capsys.readouterr()
    options = [f"data.path={data}", "train.eval_seq_len=32", "train.device=cpu", "train.dtype=float32"]
    assert main(["eval", str(folder), *options, "--json"]) == 0
    published = json.loads(capsys.readouterr().out)
    assert main(["import", str(folder), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), *options, "--json"]) == 0
    imported = json.loads(capsys.readouterr().out)
    assert imported["bits_per_byte"] == pytest.approx(published["bits_per_byte"], rel=1e-6)
    assert main(["train", str(tmp_path / "run"), *TRAIN, f"data.path={data}", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), f"data.path={data}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bits_per_byte"] < 0.8 * published["bits_per_byte"]


def test_a_run_writes_text_without_the_added_space(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The `▁` of the first token after an empty prompt is not a part of the text."""
    _, data = made("llama_2")
    sizes = [f"model.vocab_size={VOCAB}", "model.d_model=32", "model.n_layers=1", "model.max_seq_len=64"]
    train = ["train", "tiny-llama", *sizes, *TRAIN, f"data.path={data}", "--out", str(tmp_path / "run")]
    assert main(train) == 0
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "run"), "--prompt", "", "--max-new-tokens", "8", "--temperature", "0"]) == 0
    written = capsys.readouterr().out
    tokenizer, model = load(data / TOKENIZER), archlab.from_pretrained(tmp_path / "run")
    begin = torch.tensor([[DataFolder.open(data).manifest.end_of_text]])
    tokens = archlab.generate(model, begin, max_new_tokens=8)[0, 1:].tolist()
    assert (tokenizer.id_to_token(tokens[0]) or "").startswith("▁")
    assert written.rstrip("\n") == tokenizer.decode(tokens).rstrip("\n")
