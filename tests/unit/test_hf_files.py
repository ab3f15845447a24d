"""Hugging Face folders that are damaged, contradict themselves or link out of the folder, and invalid config.json."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

import archlab
from archlab.cli import app
from archlab.config.io import build_config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.hf_config import read_model_config
from archlab.exchange.load import check_hf, load_hf
from archlab.exchange.save import save_pretrained
from archlab.families.registry import FAMILIES
from archlab.hf.folder import is_hub_id
from archlab.infer.load import load_codec
from archlab.model.decoder import Decoder

torch.set_num_threads(1)

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SIZES = {"vocab_size": 300, "d_model": 16, "n_layers": 2, "max_seq_len": 64, "mlp": {"d_ff": 24}}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers."""
    folder = tmp_path_factory.mktemp("hf") / "llama"
    model = Decoder(build_config({"model": {**SIZES, "attention": {"n_heads": 4, "n_kv_heads": 2}}}).model)
    save_pretrained(model, folder, "llama")
    return folder


@pytest.fixture
def hf(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "hf"))


def refusal(folder: Path) -> str:
    """Return the message of loading. Check that `check_hf` and the command line refuse the folder, without traceback."""
    with pytest.raises(UserError) as caught:
        load_hf(folder)
    assert check_hf(folder)
    assert app.main(["inspect", str(folder)]) == app.main(["generate", str(folder), "--prompt", "a"]) == 2
    return str(caught.value)


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def sharded(folder: Path) -> dict[str, Any]:
    """Split the weights into two files with an index. Return the index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / INDEX).write_text(json.dumps(index))
    return index


def test_the_copy_loads(hf: Path) -> None:
    single_file = load_hf(hf)
    assert check_hf(hf) == []
    sharded(hf)
    assert check_hf(hf) == []
    for (name, a), (_, b) in zip(single_file.named_parameters(), load_hf(hf).named_parameters(), strict=True):
        assert torch.equal(a, b), name


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", 7, None, ["a"]])
def test_an_index_never_leads_out_of_the_folder(hf: Path, name: Any) -> None:
    index = sharded(hf)
    shutil.copy(hf / "a.safetensors", hf.parent / "x.safetensors")
    index["weight_map"][next(iter(index["weight_map"]))] = name
    (hf / INDEX).write_text(json.dumps(index))
    assert "is not a file of this folder" in refusal(hf) or "missing, but" in refusal(hf)


@pytest.mark.parametrize("name", ["a.safetensors", "config.json"])
def test_a_link_out_of_the_folder_is_refused(hf: Path, name: str) -> None:
    sharded(hf)
    (hf / name).rename(hf.parent / "elsewhere")
    (hf / name).symlink_to(hf.parent / "elsewhere")
    assert f"{name!r} is not a file of this folder" in refusal(hf)


def test_a_tokenizer_outside_the_folder_is_refused(hf: Path) -> None:
    (hf.parent / "secret").write_text("{}")
    (hf / "tokenizer.json").symlink_to(hf.parent / "secret")
    with pytest.raises(UserError, match=r"'tokenizer\.json' is not a file of this folder"):
        load_hf(hf)


def test_the_hubs_cache_may_link_to_its_blobs(hf: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in hf.iterdir():
        shutil.copy(file, blobs / file.name)
        (snapshot / file.name).symlink_to(blobs / file.name)
    assert check_hf(snapshot) == []


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', "{", '{"weight_map": {}}', "[" * 100_000])
def test_an_invalid_index(hf: Path, index: str) -> None:
    sharded(hf)
    (hf / INDEX).write_text(index)
    assert str(hf) in refusal(hf)


def test_an_index_must_say_where_tensors_are(hf: Path) -> None:
    index = sharded(hf)
    index["weight_map"]["lm_head.weight"] = "b.safetensors"
    index["weight_map"]["nowhere.weight"] = "a.safetensors"
    (hf / INDEX).write_text(json.dumps(index))
    message = refusal(hf)
    assert "lists tensors that the files do not contain" in message
    assert "lm_head.weight in b.safetensors, nowhere.weight in a.safetensors" in message


def test_a_tensor_in_two_files(hf: Path) -> None:
    sharded(hf)
    save_file({**load_file(hf / "b.safetensors"), "lm_head.weight": torch.ones(300, 16)}, hf / "b.safetensors")
    assert "b.safetensors: lm_head.weight is also in a.safetensors" in refusal(hf)


def test_a_shard_that_is_missing(hf: Path) -> None:
    sharded(hf)
    (hf / "b.safetensors").unlink()
    assert "b.safetensors: missing, but" in refusal(hf)


@pytest.mark.parametrize("kept", [0, 4, 8, 50, 3000, -1])
def test_a_truncated_file(hf: Path, kept: int) -> None:
    file = hf / WEIGHTS
    file.write_bytes(file.read_bytes()[:kept])
    assert f"{file}: damaged" in refusal(hf)


def falsify_header(folder: Path, change_header: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of the weights but not their bytes."""
    file = folder / WEIGHTS
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change_header(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


NORM, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("shape", [17], "damaged"),
        ("shape", [2**62, 2**62], "damaged"),
        ("shape", [-16], "damaged"),
        ("shape", "16", "damaged"),
        ("shape", [4, 4], f"{NORM}  has shape [4, 4], expected [16]"),
        ("dtype", "F64", "damaged"),
        ("dtype", "F99", "damaged"),
        ("dtype", "I32", f"{NORM}  has dtype int32; allowed: float32, bfloat16, float16, float64"),
        ("data_offsets", [0, 2**60], "damaged"),
        ("data_offsets", [64, 0], "damaged"),
        ("data_offsets", [0, 64], "damaged"),
    ],
)
def test_a_false_header(hf: Path, field: str, value: Any, message: str) -> None:
    falsify_header(hf, lambda header: header[NORM].update({field: value}))
    refused = refusal(hf)
    if field == "dtype" and value == "I32":
        assert f"{NORM}  has dtype int" in refused
    else:
        assert message in refused


def test_a_header_of_absurd_length(hf: Path) -> None:
    file = hf / WEIGHTS
    file.write_bytes(struct.pack("<Q", 2**62) + file.read_bytes()[8:])
    assert "damaged" in refusal(hf)


def test_all_tensors_that_do_not_fit_are_named_at_once(hf: Path) -> None:
    tensors = load_file(hf / WEIGHTS)
    del tensors[NORM], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors |= {"lm_head.weight": torch.ones(16, 300), "model.layers.2.mlp.up_proj.weight": torch.ones(1)}
    tensors["extra"] = torch.ones(1)
    save_file(tensors, hf / WEIGHTS)
    message = refusal(hf)
    assert "5 tensors do not fit LlamaForCausalLM" in message
    for line in (
        f"  {NORM}  missing",
        "  model.layers.1.mlp.up_proj.weight  missing",
        "  lm_head.weight  has shape [16, 300], expected [300, 16]",
        "  model.layers.2.mlp.up_proj.weight  surplus",
        "  extra  surplus",
    ):
        assert line in message.splitlines()
    assert sorted(check_hf(hf)) == sorted(line.strip() for line in message.splitlines()[1:])


def test_no_weights_at_all(hf: Path) -> None:
    (hf / WEIGHTS).unlink()
    assert f"no weights; allowed: {WEIGHTS}, {INDEX}, pytorch_model.bin, pytorch_model.bin.index.json" in refusal(hf)


# --- config.json -------------------------------------------------------------------------------------------


def test_a_study_folder_says_where_its_runs_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.yaml").touch()
    for verb in ("show", "inspect", "cost", "eval", "generate"):
        assert app.main([verb, str(tmp_path), *(["--prompt", "x"] if verb == "generate" else [])]) == 2
        message = " ".join(capsys.readouterr().err.split())
        assert "a study folder" in message, verb
        assert "runs are in" in message, verb


def test_a_folder_without_config(hf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hf / "config.json").unlink()
    with pytest.raises(UserError, match=r"not a run folder .* and not a Hugging Face folder \(no config.json\)"):
        archlab.from_pretrained(hf)
    for verb in ("show", "inspect", "cost"):
        assert app.main([verb, str(hf)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 100_000, '{"model_type": "llama"}'])
def test_an_invalid_config(hf: Path, text: str) -> None:
    (hf / "config.json").write_text(text)
    assert "config.json" in refusal(hf)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("lama", "model_type is 'lama'; did you mean llama? allowed: "),
        ("longt5", "model_type is 'longt5'"),
        (
            "minimax",
            "model_type is 'minimax'; refused: lightning attention, a recurrent mixer with one fixed decay per head; `archlab",
        ),
        ("musicgen", "model_type is 'musicgen'; not a language model: continues audio tokens; `archlab list families`"),
        (None, "model_type is missing"),
        (["llama"], "model_type is ['llama']"),
    ],
)
def test_unknown_families(hf: Path, model_type: Any, message: str) -> None:
    change(hf, model_type=model_type)
    assert message in refusal(hf)


@pytest.mark.parametrize("command", ["show {}", "import {} --out {}-run", "cost {}", "inspect {}"])
def test_a_command_says_why_a_family_is_refused(hf: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(hf, model_type="diffllama")
    assert app.main(command.format(hf, hf).split()) == 2
    printed = capsys.readouterr()
    message = f"{hf / 'config.json'}: model_type is 'diffllama'; refused: attention subtracts one softmax from another"
    assert (printed.out + printed.err).count(message) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["MistralForCausalLM"]},
            "MistralForCausalLM, a class of family mistral, but model_type is llama",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, "a model for a task other than next-token prediction"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is True, which archlab cannot build"),
    ],
)
def test_a_config_that_contradicts_itself(hf: Path, changes: dict[str, Any], message: str) -> None:
    change(hf, **changes)
    assert message in refusal(hf)


@pytest.mark.parametrize("architectures", [[], None, ["LLaMAForCausalLM"], ["LlamaModel"]])
def test_old_and_unknown_names_of_the_class_are_accepted(hf: Path, architectures: Any) -> None:
    change(hf, architectures=architectures)
    assert load_hf(hf)


def test_every_reason_in_the_config_is_given_at_once(hf: Path) -> None:
    change(hf, hidden_act="mish", quantization_config={"bits": 4}, new_trick=True, rope_scaling={"rope_type": "odd"})
    message = refusal(hf)
    for part in (
        "hidden_act is 'mish'",
        "quantization_config is {'bits': 4}",
        "new_trick = True",
        "rope_type is 'odd'",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("num_attention_heads", 0, "num_attention_heads  0; allowed: at least 1"),
        ("num_hidden_layers", "two", "n_layers  'two'; allowed: a whole number"),
        ("vocab_size", [300], "vocab_size  [300]; allowed: a whole number"),
        ("rms_norm_eps", "small", "rms_norm_eps  'small'; allowed: a number"),
        ("hidden_act", ["silu"], "hidden_act is ['silu'], which archlab cannot build; allowed: a name"),
        ("rope_parameters", "none", "rope_parameters = 'none'"),
    ],
)
def test_malformed_values_are_named(hf: Path, key: str, value: Any, field: str) -> None:
    change(hf, **{key: value})
    assert field in refusal(hf)


# --- the command line and the hub --------------------------------------------------------------------------


def test_a_folder_is_a_config(hf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert archlab.load_config(hf).model == read_model_config(hf)[1]
    assert archlab.load_config(hf, "model.n_layers=5").model.n_layers == 5
    for command in (["show", hf], ["cost", hf], ["diff", hf, "llama-3-8b"], ["show", hf, "model.mlp.bias=true"]):
        assert app.main([str(word) for word in command]) == 0
    change(hf, max_position_embeddings=10_000_000)
    assert resolve_train(archlab.load_config(hf)).tokens == 10_000_000
    assert capsys.readouterr().err == ""


def tie(folder: Path, change_head: Callable[[Tensor], Tensor | None]) -> None:
    """Tie the head in the config. `change_head` returns the head's tensor for the file, or None to leave it out."""
    change(folder, tie_word_embeddings=True)
    tensors = load_file(folder / WEIGHTS)
    head = change_head(tensors["model.embed_tokens.weight"].clone())
    tensors.pop("lm_head.weight")
    save_file(tensors if head is None else {**tensors, "lm_head.weight": head}, folder / WEIGHTS)


@pytest.mark.slow
def test_inspect_and_import_refuse_the_same(hf: Path, tmp_path: Path) -> None:
    """The reason may also lie in the content of a tensor or in a file that is copied with the weights."""

    def both(spoil: Callable[[Path], object]) -> str | None:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        folder = Path(shutil.copytree(hf, tmp_path / "x"))
        spoil(folder)
        code = app.main(["import", str(folder), "--out", str(tmp_path / "run")])
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        assert app.main(["inspect", str(folder)]) == code
        return refusal(folder) if code else None

    assert both(lambda folder: tie(folder, lambda head: head)) is None
    differs = "lm_head.weight  differs from the embedding, although config.json ties the two"
    assert differs in (both(lambda folder: tie(folder, lambda head: head + 1)) or "")
    assert differs in (both(lambda folder: tie(folder, lambda head: head[:3])) or "")
    assert "eos_token_id is 'x'; allowed" in (both(lambda folder: change(folder, eos_token_id="x")) or "")
    assert "eos_token_id is [1, 1.5]; allowed" in (both(lambda folder: change(folder, eos_token_id=[1, 1.5])) or "")
    assert both(lambda folder: change(folder, eos_token_id=[1, 2], bos_token_id=None)) is None
    assert "model.norm.bias  surplus" in (both(add_a_bias) or "")
    assert "is not a file of this folder" in (both(link_elsewhere) or "")


def add_a_bias(folder: Path) -> None:
    save_file({**load_file(folder / WEIGHTS), "model.norm.bias": torch.ones(16)}, folder / WEIGHTS)


def link_elsewhere(folder: Path) -> None:
    (folder.parent / "secret").write_text("{}")
    (folder / "tokenizer.json").symlink_to(folder.parent / "secret")


def test_inspect_a_run(
    hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main(["import", str(hf), "--out", "run"]) == 0
    capsys.readouterr()
    assert app.main(["inspect", "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model_type"], found["loads"]) == ("llama", True)
    assert found["trained"] == f"not yet; as published in {hf}"
    assert found["choices"]["MLP"] == "SwiGLU, 24 wide"
    (checkpoint,) = Path("run/checkpoints").iterdir()
    checkpoint.rename("run/checkpoints/step-00000012")
    assert app.main(["inspect", "run"]) == 0
    shown = capsys.readouterr().out
    assert "12 steps, not finished" in shown
    assert shown.endswith("loads\n")
    shutil.rmtree("run/checkpoints")
    Path("run/imported.json").unlink()
    assert app.main(["inspect", "run"]) == 2
    shown = capsys.readouterr().out
    assert "made here" in shown
    assert "does not load:\nrun: no checkpoint yet" in shown
    assert app.main(["inspect", "nowhere"]) == 2
    assert "nowhere: no such file or folder" in capsys.readouterr().err


def test_inspect(hf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["inspect", str(hf), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model_type"], found["architecture"], found["loads"]) == ("llama", "LlamaForCausalLM", True)
    assert found["choices"]["MLP"] == "SwiGLU, 24 wide"
    change(hf, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    tie(hf, lambda head: None)
    assert app.main(["inspect", str(hf)]) == 0
    assert "unusual: theta 5e5, tied\nloads" in capsys.readouterr().out
    change(hf, model_type="minimax")
    assert app.main(["inspect", str(hf)]) == 2
    assert "minimax (not supported by archlab)" in capsys.readouterr().out


def test_list_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["list", "families", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["families"].keys() == FAMILIES.keys()


def test_generate_with_any_tokenizer(hf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tokenizer is like Llama 2's: ▁ for spaces, byte fallback, and a token that begins a text."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{b:02X}>": 3 + b for b in range(256)}}
    vocab |= {token: 259 + i for i, token in enumerate("▁abcdefghijklmnopqrstuvwxyz")}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(hf / "tokenizer.json"))
    change(hf, bos_token_id=1, eos_token_id=2)
    codec = load_codec(hf)
    prompt = codec.encode("so é")
    assert (prompt[0], codec.special.ends) == (1, (2,))
    decode = codec.decoder(prompt)
    new = tokenizer.encode("is ☃ it", add_special_tokens=False).ids
    assert "".join(map(decode, new)) == " is ☃ it"  # the space before a word is kept
    assert [decode(2), decode(299)] == ["", ""]
    outputs = []
    for prompt in (["--prompt", "so é"], []):
        assert app.main(["generate", str(hf), *prompt, "--max-new-tokens", "8", "--seed", "1"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0].startswith("so é")
    change(hf, vocab_size=300, bos_token_id=None, eos_token_id=None)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.save(str(hf / "tokenizer.json"))
    assert app.main(["generate", str(hf)]) == 2
    assert "no file of the model names a token that begins a text" in capsys.readouterr().err


def save_byte_level_tokenizer(folder: Path) -> None:
    """Write a tokenizer of 256 bytes without special tokens into a folder, whose config.json then names none."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    change(folder, bos_token_id=None, eos_token_id=None)


def test_python_continues_a_text_as_the_command_does(hf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_byte_level_tokenizer(hf)
    ours = archlab.generate(archlab.from_pretrained(hf), "so", max_new_tokens=8)
    assert "note:" not in capsys.readouterr().err
    assert app.main(["generate", str(hf), "--prompt", "so", "--max-new-tokens", "8", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == f"{ours}\n"


def test_an_imported_run_that_was_trained_on_a_task_has_no_text(
    hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_byte_level_tokenizer(hf)
    run = tmp_path / "run"
    archlab.import_model(hf, run)
    settings = ["data.task.kind=recall", "train.seq_len=32", "train.batch_tokens=32", "train.tokens=64"]
    assert app.main(["train", str(run), "--out", str(run), "train.eval_tokens=64", *settings]) == 0
    why = "was trained on a task (Recall"
    with pytest.raises(UserError, match=re.escape(why)):
        archlab.generate(archlab.from_pretrained(run), "so")
    capsys.readouterr()
    assert app.main(["generate", str(run), "--prompt", "so"]) == 2
    assert why in capsys.readouterr().err


def test_text_for_a_model_without_tokenizer(
    hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that needs a tokenizer names the folder without one, and no file that does not exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 400)
    assert app.main(["import", str(hf), "--out", "run"]) == 0
    assert app.main(["data", "text.txt", "--out", "data", "--vocab-size", "300"]) == 0
    small = ["data.path=data", "train.tokens=64", "train.seq_len=16", "train.batch_tokens=16"]
    for command in (
        ["generate", str(hf)], ["generate", "run"], ["eval", str(hf), *small], ["eval", "run", *small],
        ["data", "text.txt", "--out", "d", "--tokenizer", "run"], ["train", "run", *small, "--out", "run"],
    ):  # fmt: skip
        capsys.readouterr()
        assert app.main(command) == 2
        *_, message = capsys.readouterr().err.splitlines()
        folder = hf if str(hf) in command else "run"
        assert message.startswith(f"{folder} has no tokenizer.json; copy the model authors' file"), command
    shutil.copy("data/tokenizer.json", "run")
    assert app.main(["generate", "run", "--max-new-tokens", "2", "--prompt", "the"]) == 0
    assert app.main(["data", "text.txt", "--out", "d", "--tokenizer", "run"]) == 0


@pytest.mark.parametrize("kind", ["hub id", "Hugging Face folder", "run folder"])
def test_every_config_may_be_a_folder_or_a_hub_id(
    kind: str, hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    requested: list[list[str]] = []

    def downloads(hub_id: str, allow_patterns: list[str], revision: str | None) -> str:
        requested.append(allow_patterns)
        return str(hf)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloads)
    if kind == "run folder":
        assert app.main(["import", str(hf), "--out", str(tmp_path / "run")]) == 0
    config = {"hub id": "some/model", "Hugging Face folder": str(hf), "run folder": str(tmp_path / "run")}[kind]
    for command in (["show", config], ["cost", config, "--json"], ["diff", config, "tiny-llama"], ["flatten", config]):
        capsys.readouterr()
        assert app.main(command) == 0
        assert capsys.readouterr().out
    assert app.main(["show", config, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"]["mlp"]["d_ff"] == 24
    assert requested == ([["config.json"]] * 5 if kind == "hub id" else [])


def test_an_unknown_name_is_reported_in_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    assert app.main(["cost", "some/model"]) == 2
    assert capsys.readouterr().err.startswith("some/model: no such file or folder, and ")
    assert app.main(["cost", "some/model.yaml"]) == 2
    assert capsys.readouterr().err.startswith("some/model.yaml: no such file")
    for no_hub_id in ("a/b/c", "/a/b", "model"):
        assert app.main(["cost", no_hub_id]) == 2
        assert capsys.readouterr().err.startswith(
            f"unknown config '{no_hub_id}': neither a preset, a file nor a hub id (owner/name)"
        )


def test_a_hub_id_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no network\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(
        UserError, match=r"^some/model: .* the download from the Hugging Face hub failed: no network; check "
    ):
        archlab.from_pretrained("some/model")


def test_a_hub_id_downloads_no_more_than_is_read(hf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fnmatch

    import huggingface_hub

    requested: list[str] = []

    def downloads(hub_id: str, allow_patterns: list[str], revision: str | None) -> str:
        assert hub_id == "some/model"
        requested.extend(allow_patterns)
        return str(hf)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", downloads)
    assert isinstance(archlab.from_pretrained("some/model"), Decoder)
    assert app.main(["inspect", "some/model"]) == 0
    refused = ("pytorch_model.bin", "modeling.py", "a.pt", "consolidated.00.pth", "x.gguf")
    assert not [name for name in refused if any(fnmatch.fnmatch(name, pattern) for pattern in requested)]
    assert not any(is_hub_id(name) for name in ("a", "/a/b", "a/b/c", "../b", "./a", "a/", "a/../b"))
