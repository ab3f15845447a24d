"""Special tokens are those of transformers, whichever file names them. Data, eval and export use the same tokens."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

import archlab
from archlab.cli import app
from archlab.config.schema import DataConfig
from archlab.data import tokenizer as bpe
from archlab.data.open import open_training_data
from archlab.data.prepare import prepare
from archlab.data.shards import DataFolder
from archlab.data.spelling import spelling
from archlab.digests import write_with_digests
from archlab.errors import UserError
from archlab.exchange.gguf.write import save_gguf
from archlab.hf.special_tokens import SpecialTokens, complete_from
from archlab.infer.import_export import export_gguf, export_model, import_model
from archlab.infer.load import load_codec
from archlab.infer.session import Session
from archlab.infer.text import stream_text
from scores import score
from tests.parity.tiny import Case, tiny_model

TEXT = "the quick brown fox jumps over the lazy dog. "
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "vocab_size": 320,
}  # fmt: skip
SMALL_RUN = ("train.tokens=128", "train.seq_len=32", "train.batch_tokens=64", "train.warmup=0", "train.compile=false")
LLAMA_3 = ("<|begin_of_text|>", "<|end_of_text|>")
FIVE_FAMILIES = [
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"), ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    ("<|bos|>", "<|assistant_end|>"), ("<seed:bos>", "<seed:eos>"), ("[BOS]", "[|endofturn|]"),
]  # fmt: skip


def byte_level(special: Sequence[str], put_first: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    if put_first:
        number = tokenizer.token_to_id(put_first)
        template = processors.TemplateProcessing(single=f"{put_first} $A", special_tokens=[(put_first, number)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def write(
    folder: Path, tokenizer: Tokenizer, files: dict[str, Any], config: dict[str, Any] | None = None, std: float = 0.3
) -> Path:
    """Write a Hugging Face folder. `config` None: without a model."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        model = tiny_model(Case("llama", "text", SIZES))
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=std)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        old = json.loads((folder / "config.json").read_text())
        kept = {key: value for key, value in old.items() if not key.endswith("_token_id")}
        (folder / "config.json").write_text(json.dumps(kept | config))
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content, **plain, **flags}


def described(**more: Any) -> dict[str, Any]:
    return {"tokenizer_class": "PreTrainedTokenizerFast", **more}


def text_file(folder: Path, documents: int = 40) -> Path:
    words, rng = TEXT.split(), np.random.default_rng(0)
    file = folder / "x.jsonl"
    file.write_text("".join(json.dumps({"text": " ".join(rng.choice(words, 8))}) + "\n" for _ in range(documents)))
    return file


# --- which tokens there are -------------------------------------------------------------------------------

NEXT = byte_level(["<s>", "</s>"]).get_vocab_size()
NO_FLAG = {
    key: value for key, value in token("<s>").items() if key != "special"
}  # transformers writes this file without it
MAP = {"bos_token": NO_FLAG, "eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
DECODER = {"0": token("<s>"), "1": token("</s>"), str(NEXT): token("<|im_start|>"), str(NEXT + 1): token("<|im_end|>")}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config": described(bos_token="<s>", eos_token="</s>")},
        {"tokenizer_config": described(bos_token="<s>", eos_token="</s>", added_tokens_decoder=DECODER)},
        {"tokenizer_config": described(eos_token=None, added_tokens_decoder=DECODER), "special_tokens_map": MAP},
        {"tokenizer_config": described(bos_token="</s>", eos_token="</s>"), "special_tokens_map": MAP},
        {"special_tokens_map": MAP, "added_tokens": {"<|im_start|>": NEXT, "<|im_end|>": NEXT + 1}},
        {"added_tokens": {"<|im_start|>": NEXT, "<|im_end|>": NEXT + 1}},
        {"tokenizer_config": described(eos_token="<|im_end|>", image_token="<|im_start|>", add_bos_token=True)},
        {"tokenizer_config": described(bos_token={"__type": "AddedToken", **token("<|im_start|>", lstrip=True)})},
        {"tokenizer_config": described(extra_special_tokens={"turn": "<|im_start|>"}, pad_token="<|im_end|>")},
        {"tokenizer_config": described(bos_token="the", extra_special_tokens=["<|im_start|>", "quick"])},
        {"tokenizer_config": described(added_tokens_decoder={str(NEXT): token("<|im_start|>", special=False)})},
        {"tokenizer_config": described(bos_token="<s>", pad_token="<|im_end|>", unk_token="<|im_start|>")},
        {"tokenizer_config": described(boi_token="<|im_start|>", bos_token="<s>", eos_token="<|im_end|>")},
        {"tokenizer_config": described(bos_token="<s>", eos_token="</s>", split_special_tokens=True)},
    ],
    ids=range(15),
)
@pytest.mark.parametrize("put_first", ["<s>", None])
def test_tokens_are_those_of_auto_tokenizer(put_first: str | None, files: dict[str, Any], tmp_path: Path) -> None:
    config = {"bos_token_id": 0, "eos_token_id": 1}
    folder = write(tmp_path, byte_level(["<s>", "</s>"], put_first), files, config)
    theirs, codec = AutoTokenizer.from_pretrained(folder), load_codec(folder)
    for text in ("<|im_start|>the quick<|im_end|>", "the  <|im_start|> quick", "<s>a</s>"):
        assert codec.encode(text) == theirs(text).input_ids
    special = codec.special
    assert (special.bos, special.eos) == (theirs.bos_token_id, theirs.eos_token_id)
    # lm_eval's `hf` model puts this token before a text without context.
    prefix = theirs.bos_token_id if theirs.bos_token_id is not None else theirs.eos_token_id
    assert special.first == (0 if prefix is None else prefix)


def test_a_space_before_the_text_is_as_tokenizer_json_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers follows either file, depending on the tokenizer's class."""
    for add_prefix_space, notes in ((False, 0), (True, 1)):
        folder = write(
            tmp_path,
            byte_level(["<s>", "</s>"]),
            {"tokenizer_config": described(add_prefix_space=add_prefix_space)},
            {},
        )
        assert load_codec(folder).encode("the") == AutoTokenizer.from_pretrained(folder)("the").input_ids
        note = "add_prefix_space is true, but false in tokenizer.json; archlab follows tokenizer.json"
        assert capsys.readouterr().err.count(note) == notes


def test_damaged_and_contradicting_files_are_refused(tmp_path: Path) -> None:
    def refused(**files: Any) -> str:
        for old in tmp_path.iterdir():
            old.unlink()
        with pytest.raises(UserError) as error:
            bpe.read(write(tmp_path, byte_level(["<s>"]), files))
        return str(error.value)

    n = byte_level(["<s>"]).get_vocab_size()
    named = {name: f"{tmp_path / name}.json: " for name in ("tokenizer_config", "added_tokens", "generation_config")}
    found = refused(tokenizer_config=described(added_tokens_decoder={"400": token("<x>")}))
    message = f"'<x>' has id 400, but the next free id of tokenizer.json is {n}"
    assert found == named["tokenizer_config"] + message
    assert refused(added_tokens={"<x>": 400}).startswith(named["added_tokens"] + "'<x>' has id 400")
    assert refused(added_tokens={"<x>": "x"}) == named["added_tokens"] + "'x' is not a token id; allowed: an integer"
    assert "5 is not a token" in refused(tokenizer_config=described(added_tokens_decoder={"9": 5}))
    assert "added_tokens_decoder is []" in refused(tokenizer_config=described(added_tokens_decoder=[]))
    found = refused(special_tokens_map=[])
    assert found == f"{tmp_path / 'special_tokens_map.json'}: expected a JSON object, found list"
    found = refused(generation_config={"eos_token_id": "x"})
    assert found.startswith(named["generation_config"] + "eos_token_id is 'x'")
    for damage in ("{", "[" * 100_000):
        (tmp_path / "generation_config.json").write_text(damage)
        with pytest.raises(UserError) as error:
            bpe.read(tmp_path)
        assert str(error.value).startswith(named["generation_config"] + "not valid JSON")


# --- where generate stops ---------------------------------------------------------------------------------


def generated(folder: Path, prompt: list[int]) -> tuple[list[int], list[int]]:
    """Return the tokens that transformers and archlab generate after a prompt."""
    ids, model = torch.tensor([prompt]), AutoModelForCausalLM.from_pretrained(folder)
    theirs = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, len(prompt) :].tolist()
    session = Session(archlab.from_pretrained(folder), ids, len(prompt) + 8)
    return theirs, [int(token) for token in session.write(8, None, load_codec(folder).special.ends)]


@pytest.mark.parametrize(
    ("config", "generation"),
    [
        ("free", None), ([1, "end"], None), ("end", None), (1, "end"), (1, [1, "end"]), (None, "end"), ("end", 1),
        ("end", "absent"), (-1, None), (None, 1 << 40),
    ],
    ids=str,
)  # fmt: skip
def test_it_stops_where_transformers_does(config: Any, generation: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(["<s>", "</s>", "<end>"]), {}, {})
    prompt = [260, 270, 280]
    free, _ = generated(folder, prompt)
    end = free[2]

    def number(value: Any) -> Any:
        return [number(item) for item in value] if isinstance(value, list) else end if value == "end" else value

    values = json.loads((folder / "config.json").read_text())
    if config != "free":
        (folder / "config.json").write_text(json.dumps(values | {"eos_token_id": number(config)}))
    if generation is not None:
        named = {} if generation == "absent" else {"eos_token_id": number(generation)}
        (folder / "generation_config.json").write_text(json.dumps(named))
    theirs, ours = generated(folder, prompt)
    assert ours == theirs
    stops = "end" in str(generation if generation is not None else config)
    assert theirs == free[: free.index(end) + 1 if stops else len(free)]


def test_an_end_token_outside_the_vocabulary(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(["<s>", "</s>"]), {"generation_config": {"eos_token_id": 5000}}, {})
    model, codec = archlab.from_pretrained(folder), load_codec(folder)
    assert codec.special.ends == (AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id,)
    assert "".join(stream_text(model, codec, "the quick", 8))


def test_without_an_end_in_the_models_files_the_tokenizers_eos_token_ends_a_text(tmp_path: Path) -> None:
    """transformers' `generate` would never stop. lm_eval's `hf` model stops at the tokenizer's token."""
    tokenizer = byte_level(["<s>", "</s>"])
    assert complete_from(tokenizer, write(tmp_path, tokenizer, {"special_tokens_map": {"eos_token": "</s>"}})).ends == (
        1,
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 0]}))
    special = complete_from(tokenizer, tmp_path)
    assert (special.ends, special.stops) == ((5, 0), (1, 5, 0))


def test_a_gguf_file_names_them(tmp_path: Path) -> None:
    files = {
        "tokenizer_config": described(bos_token="<s>", eos_token="<|im_end|>", added_tokens_decoder=DECODER),
        "generation_config": {"bos_token_id": 1, "eos_token_id": [1, NEXT, NEXT + 1, 7, 8]},
    }
    folder = write(tmp_path / "hf", byte_level(["<s>", "</s>"], "<s>"), files, {"bos_token_id": 1, "eos_token_id": 1})
    _, notes = save_gguf(archlab.from_pretrained(folder), tmp_path / "m.gguf")
    found = {
        f.name.removeprefix("tokenizer.ggml."): f.contents() for f in GGUFReader(tmp_path / "m.gguf").fields.values()
    }
    assert found["tokens"][NEXT : NEXT + 2] == ["<|im_start|>", "<|im_end|>"]
    assert found["token_type"][NEXT : NEXT + 3] == [3, 3, 5]
    assert (found["bos_token_id"], found["eos_token_id"]) == (0, NEXT + 1)
    assert {found["eot_token_id"], found["eom_token_id"]} == {1, NEXT}
    assert (found["add_bos_token"], found["add_eos_token"]) == (True, False)
    assert notes == ["tokens 7, 8 also end a text, but a GGUF file can list only 3 stop tokens"]


# --- the token that precedes a document -------------------------------------------------------------------


@pytest.mark.parametrize("names", FIVE_FAMILIES, ids=lambda names: names[0])
def test_end_tokens_of_any_name(names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other files name these tokens. Without such files, the first special token precedes documents."""
    begin, end = names
    tokenizer, text = byte_level(["<unk>", *names]), str(text_file(tmp_path))
    beside = write(tmp_path / "hf", tokenizer, {"tokenizer_config": described(bos_token=begin, eos_token=end)}, {})
    made = prepare([text], tmp_path / "data", tokenizer=beside, held_out=0.2)
    expected = AutoTokenizer.from_pretrained(beside).bos_token_id
    assert (made.manifest.end_of_text, made.document_tokens) == (expected, (expected,))
    ids = np.fromfile(made.path / "fold-00-00000.bin", "<u2").astype(np.int64)
    [*documents] = np.split(ids, np.flatnonzero(ids == expected))[1:]
    theirs = AutoTokenizer.from_pretrained(beside)
    for document in documents:
        assert document[1:].tolist() == theirs(theirs.decode(document[1:]), add_special_tokens=False).input_ids
    assert "note:" not in capsys.readouterr().err
    # Data made with the tokenizer.json of the data folder, without any other file, is the same.
    again = prepare([text], tmp_path / "again", tokenizer=made.path / "tokenizer.json", held_out=0.2)
    assert again.fingerprint == made.fingerprint
    tokenizer.save(str(tmp_path / "alone.json"))
    alone = prepare([text], tmp_path / "alone", tokenizer=tmp_path / "alone.json", held_out=0.2)
    assert alone.manifest.end_of_text == 0
    assert "<unk>, its first special token, precedes each document" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("put_first", "files", "config", "expected"),
    [
        ("<s>", {"tokenizer_config": described(bos_token="<x>", eos_token="</s>")}, {"bos_token_id": 1}, "<s>"),
        (None, {"special_tokens_map": {"bos_token": "<x>", "eos_token": "</s>"}}, {"bos_token_id": 0}, "<x>"),
        (None, {"generation_config": {"bos_token_id": 2}}, {"bos_token_id": 0, "eos_token_id": 1}, "<x>"),
        (None, {"generation_config": {"eos_token_id": 2}}, {"bos_token_id": 0, "eos_token_id": 1}, "<s>"),
        (None, {"tokenizer_config": described(eos_token="</s>")}, {"bos_token_id": 2, "eos_token_id": 0}, "<x>"),
        (None, {"tokenizer_config": described(eos_token="<x>")}, {"eos_token_id": 0}, "<x>"),
        (None, {}, {"eos_token_id": [2, 1]}, "<x>"),
        (None, {}, {"bos_token_id": 270}, None),
    ],
    ids=range(8),
)
def test_the_beginning_of_text_token_precedes_documents_otherwise_the_end_of_text_token(
    put_first: str | None, files: dict[str, Any], config: dict[str, Any], expected: str | None, tmp_path: Path
) -> None:
    folder = write(tmp_path, byte_level(["<s>", "</s>", "<x>"], put_first), files, config)
    loaded = bpe.load(folder)
    [before] = bpe.document_tokens(loaded)
    assert before == (270 if expected is None else loaded.token_to_id(expected))
    assert spelling(loaded).sizes[before] == 0


def test_several_tokens_before_a_text(tmp_path: Path) -> None:
    """An example is GLM's [gMASK]<sop>."""
    tokenizer = byte_level(["[gMASK]", "<sop>"])
    numbers = [("[gMASK]", 0), ("<sop>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[gMASK] <sop> $A", special_tokens=numbers)
    folder = write(tmp_path / "hf", tokenizer, {})
    data = prepare([str(text_file(tmp_path))], tmp_path / "data", tokenizer=folder, held_out=0.2)
    ids = np.fromfile(data.path / "fold-00-00000.bin", "<u2")
    assert (ids == 0).sum() == data.manifest.folds[0].documents
    assert (ids[np.flatnonzero(ids == 0) + 1] == 1).all()


def imported(tmp_path: Path, put_first: str | None = LLAMA_3[0]) -> tuple[Path, Path]:
    """Return a published folder with a bos and an eos token, and the run folder that imports it."""
    files = {"tokenizer_config": described(bos_token=LLAMA_3[0], eos_token=LLAMA_3[1])}
    folder = write(
        tmp_path / "hf", byte_level(LLAMA_3, put_first), files, {"bos_token_id": 0, "eos_token_id": 1}, std=0.1
    )
    import_model(str(folder), tmp_path / "run")
    return folder, tmp_path / "run"


@torch.no_grad()
@pytest.mark.parametrize("put_first", [LLAMA_3[0], None])
def test_eval_puts_the_models_own_token_before_each_document(put_first: str | None, tmp_path: Path) -> None:
    folder, run = imported(tmp_path, put_first)
    theirs, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).double()
    data = prepare([str(text_file(tmp_path))], tmp_path / "data", tokenizer=run, held_out=0.2)
    # One window holds all documents. Each follows the token that begins a text.
    ids = np.fromfile(data.path / "fold-00-00000.bin", "<u2").astype(np.int64)
    length = min(len(ids) - 1, 120)
    nats = n_bytes = 0.0
    for document in np.split(ids[: length + 1], np.flatnonzero(ids[: length + 1] == theirs.bos_token_id))[1:]:
        text = theirs.decode(document, skip_special_tokens=True)
        fresh = torch.tensor([[theirs.bos_token_id, *theirs(text, add_special_tokens=False).input_ids]])
        logits = model(fresh).logits[0, :-1].log_softmax(-1)
        nats -= logits.gather(-1, fresh[0, 1:, None]).sum().item()
        n_bytes += len(text.encode())
    overrides = (f"data.path={data.path}", f"train.seq_len={length}", "train.document_mask=true", "train.dtype=float32")
    for source in (folder, run):
        found = score(str(source), overrides, length)
        assert found.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-5)


def test_data_with_another_document_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = imported(tmp_path)
    byte_level(LLAMA_3).save(str(tmp_path / "alone.json"))  # no file names the tokens, so a list of usual names decides
    data = prepare([str(text_file(tmp_path))], tmp_path / "data", tokenizer=tmp_path / "alone.json", held_out=0.2)
    assert data.manifest.end_of_text == 1
    for command in (["eval", run], ["eval", folder], ["train", run, "--out", run]):
        arguments = [*command, f"data.path={data.path}", *SMALL_RUN]
        assert app.main([str(word) for word in arguments]) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert "begins each document with <|end_of_text|>, but" in message
        assert "begins a text with <|begin_of_text|>; make it with `archlab data --tokenizer" in message
    byte_level([*LLAMA_3, "<x>"]).save(str(tmp_path / "other.json"))
    other = prepare([str(text_file(tmp_path))], tmp_path / "other", tokenizer=tmp_path / "other.json", held_out=0.2)
    with pytest.raises(UserError, match="has a different tokenizer than"):
        score(str(run), (f"data.path={other.path}", *SMALL_RUN), 64)


def test_a_trained_import_ends_where_a_document_begins(tmp_path: Path) -> None:
    """After training, the model and its export end a document with the token that begins the next one."""
    folder, run = imported(tmp_path)
    assert load_codec(run).special.ends == load_codec(folder).special.ends == (1,)
    data = prepare([str(text_file(tmp_path))], tmp_path / "data", tokenizer=run, held_out=0.2)
    assert app.main(["train", str(run), f"data.path={data.path}", *SMALL_RUN, "train.lr=1e-6", "--out", str(run)]) == 0
    assert load_codec(run).special.ends == (1, 0)
    export_model(run, tmp_path / "back")
    model, theirs = (kind.from_pretrained(tmp_path / "back") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.generation_config.eos_token_id == [1, 0]
    expected = theirs("the fox").input_ids
    assert expected[0] == 0
    assert load_codec(tmp_path / "back").encode("the fox") == load_codec(run).encode("the fox") == expected
    assert score(str(run), (f"data.path={data.path}",), 64).bits_per_byte


# --- archlab's own runs and their export ------------------------------------------------------------------


def trained(out: Path, data: str, *more: str) -> Path:
    base = ("tiny-llama", f"data.path={data}", "model.vocab_size=320", "model.d_model=32", "model.n_layers=2")
    assert app.main(["train", *base, *SMALL_RUN, *more, "--out", str(out)]) == 0
    return out


def same_as_exported(run: Path, out: Path, document_token: int) -> None:
    """Check that ids and texts of a run equal those of its export, in transformers and archlab, and in GGUF."""
    export_model(run, out)
    theirs, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    ours = load_codec(run)
    assert ours.encode("the quick") == theirs("the quick").input_ids == load_codec(out).encode("the quick")
    assert ours.encode("the quick")[0] == document_token
    assert ours.special.ends == load_codec(out).special.ends == (model.generation_config.eos_token_id,)
    ids = theirs("the quick", return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    expected = theirs.decode(written, skip_special_tokens=True).rstrip("\ufffd")  # an incomplete character
    for folder in (run, out):
        loaded, codec = archlab.from_pretrained(folder), load_codec(folder)
        assert [
            int(new) for new in Session(loaded, ids, ids.shape[1] + 8).write(8, None, codec.special.ends)
        ] == written.tolist()
        assert "".join(stream_text(loaded, codec, "the quick", 8)).rstrip("\ufffd") == expected
    export_gguf(run, out / "m.gguf")
    found = {f.name.removeprefix("tokenizer.ggml."): f.contents() for f in GGUFReader(out / "m.gguf").fields.values()}
    assert found["bos_token_id"] == found["eos_token_id"] == document_token
    assert found["add_bos_token"] is True


def test_an_exported_run_begins_texts_as_the_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    run = trained(tmp_path / "run", str(text_file(tmp_path, 200)))
    same_as_exported(run, tmp_path / "hf", 0)
    # The run's own tokenizer has not changed, and the exported tokenizer is the same.
    assert json.loads((run / "tokenizer.json").read_text())["post_processor"] is None
    bpe.check_same(bpe.load(run), bpe.load(tmp_path / "hf"), "run", "hf")


def test_a_run_with_a_published_tokenizer(tmp_path: Path) -> None:
    names = FIVE_FAMILIES[3]  # has a colon, at which the library's template would split it
    files = {"tokenizer_config": described(bos_token=names[0], eos_token=names[1])}
    folder = write(tmp_path / "from", byte_level(["<unk>", *names]), files)
    data = prepare([str(text_file(tmp_path))], tmp_path / "data", tokenizer=folder, held_out=0.2)
    run = trained(tmp_path / "run", str(data.path))
    same_as_exported(run, tmp_path / "hf", 1)
    assert score(str(run), (), 64).bits_per_byte


def test_old_data_folders_and_runs_keep_their_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older archlab used a list of names, even if the tokenizer itself begins a text with another token."""
    new, text = tmp_path / "new.json", str(text_file(tmp_path))
    byte_level(LLAMA_3, LLAMA_3[0]).save(str(new))
    with monkeypatch.context() as as_it_was:
        as_it_was.setattr(bpe, "document_tokens", lambda tokenizer: (bpe.end_of_text(tokenizer),))
        as_it_was.setattr(bpe, "put_before_text", lambda tokenizer, token: None)
        data = prepare([text], tmp_path / "data", tokenizer=new, held_out=0.2)
    opened = DataFolder.open(data.path)
    assert opened.document_tokens == (opened.manifest.end_of_text,) == (1,)
    run = trained(tmp_path / "run", str(data.path))
    same_as_exported(run, tmp_path / "hf", 1)
    expected = score(str(run), (), 64).bits_per_byte
    env = json.loads((run / "env.json").read_text())
    assert env.pop("document_token") == 1
    write_with_digests(run, {"env.json": json.dumps(env)})
    assert load_codec(run).encode("the")[0] == 1
    assert score(str(run), (), 64).bits_per_byte == expected
    remade = prepare([text], tmp_path / "remade", tokenizer=new, held_out=0.2)
    assert remade.manifest.end_of_text == 0
    with pytest.raises(UserError, match=r"begins each document with <\|begin_of_text\|>, but"):
        score(str(run), (f"data.path={remade.path}",), 64)
    with pytest.raises(UserError, match="already contains other data"):
        prepare([text], data.path, tokenizer=new, held_out=0.2)
    both = {name: {"path": str(folder.path), "weight": 1} for name, folder in (("a", data), ("b", remade))}
    with pytest.raises(UserError, match="begins documents with a different token than a"):
        open_training_data(DataConfig.model_validate({"mixture": both}), 320)


def test_no_file_names_a_token() -> None:
    assert (SpecialTokens().document, SpecialTokens().first, SpecialTokens().stops) == ((), None, ())
