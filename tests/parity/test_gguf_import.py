"""Import of GGUF files: the model is that of transformers, and the tokenizer gives the tokens of the published one."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from archlab.cli import app
from archlab.errors import UserError
from archlab.exchange.gguf.read import read_gguf
from archlab.exchange.gguf.registry import architecture_of
from archlab.exchange.gguf.write import save_gguf
from archlab.exchange.load import load_hf
from archlab.hf.family import differing
from archlab.infer.import_export import export_gguf
from archlab.infer.load import load_run
from chats import CHATML, some_chats, write_chats
from tests.parity.gguf_latent import LATENT_LEFT_OUT
from tests.parity.gguf_recurrent import FOLDED, RECURRENT_FURTHER, RECURRENT_LEFT_OUT, RECURRENT_WRONG
from tests.parity.test_chat_templates import SETTINGS, TOOLS
from tests.parity.test_gguf import GEMMA, LLAMA3, NAMED, WORDS, YARN, exported, named, split
from tests.parity.tiny import SMALL, Case, tiny_model

torch.set_num_threads(1)

PUBLISHED_LLAMA3 = {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
CASES = [
    Case("llama", "gqa-wide-heads", {**SMALL, "head_dim": 12, "rms_norm_eps": 1e-5}),
    Case("llama", "tied-biases-llama3", {
        **SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "rope_parameters": PUBLISHED_LLAMA3, "max_position_embeddings": 131072,
    }),
    Case("llama", "linear", {
        **SMALL, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4},
    }),
    Case("qwen2", "yarn", {**SMALL, "rope_parameters": {**YARN, "attention_factor": 1.5}}),
    *(case for case in NAMED if "llama3" not in case.name),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    exported(case, tmp_path)
    model, notes = read_gguf(tmp_path / "model.gguf")
    tokens = torch.randint(3, 61, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = tiny_model(case)(tokens).logits
        # Rounding grows with the depth. Without AVX-512, transformers' Jamba in float32 is 1.5e-5 from itself in float64.
        tolerance = (3e-5 if case.model_type == "jamba" else 1e-5) * max(1, model.config.n_layers / 16)
        assert (model(tokens) - logits).abs().max() <= tolerance * logits.std()
    assert notes == ["archlab cannot read the tokenizer (none); put its tokenizer.json into the run folder"]
    if "attention_factor" not in str(case.hf):  # a quotient of float32 numbers
        folded = FOLDED if case.model_type == "falcon_h1" else set[str]()
        fields = differing(model.config, load_hf(tmp_path).config)
        assert {re.sub(r"^(model|layers?)\.(\d+\.)?", "", field) for field in fields} <= folded, fields


def test_quantized_weights_are_the_numbers_of_llama_cpp(tmp_path: Path) -> None:
    """Q8_0 and F16: `gguf` itself reads the file."""
    case = Case("llama", "wide", {**SMALL, "intermediate_size": 64})
    reader = exported(case, tmp_path)
    kinds = {"attn_v.weight": gguf.GGMLQuantizationType.Q8_0, "ffn_down.weight": gguf.GGMLQuantizationType.F16}
    file = rewritten(reader, tmp_path / "small.gguf", kinds=kinds)
    stored = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    assert {stored[f"blk.0.{name}"].tensor_type for name in kinds} == set(kinds.values())
    state = read_gguf(file)[0].state_dict()
    for theirs, name in {"blk.1.attn_v": "layers.1.attention.v", "blk.2.ffn_down": "layers.2.mlp.down"}.items():
        tensor = stored[f"{theirs}.weight"]
        assert np.array_equal(state[f"{name}.weight"].numpy(), gguf.dequantize(tensor.data, tensor.tensor_type))


def rewritten(
    reader: GGUFReader, file: Path, kinds: dict[str, Any] | None = None, without: str = "", **fields: Any
) -> Path:
    """Write a GGUF file again, with other formats, without a tensor, or with further fields (`__` stands for a dot)."""
    architecture = str(fields.pop("architecture", reader.fields["general.architecture"].contents()))
    writer = GGUFWriter(file, architecture)
    fields = {name.replace("__", "."): value for name, value in fields.items()}
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture")) or name in fields:
            continue
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
        list: writer.add_array,
    }  # fmt: skip
    for name, value in fields.items():
        add[type(value)](name, value)
    for tensor in reader.tensors:
        kind = next((kind for name, kind in (kinds or {}).items() if tensor.name.endswith(name)), None)
        data = tensor.data if kind is None else gguf.quantize(np.array(tensor.data), kind)
        if tensor.name != without:
            writer.add_tensor(tensor.name, np.array(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


WINDOWS = "attention.sliding_window_pattern"
LEFT_OUT = {
    "gemma2-alternating": (WINDOWS, "rope.freq_base", "rope.dimension_count", "rope.freq_base_swa"),
    "gemma3_text-windows": (WINDOWS, "rope.freq_base_swa", "rope.dimension_count"),
    "gpt2-tied": ("attention.head_count_kv", "attention.key_length", "attention.value_length"),
    "cohere2-windows": (WINDOWS, "rope.freq_base_swa"),
    "olmo3-windows-yarn": (WINDOWS, "rope.freq_base_swa"),
    "qwen3_moe-wide-heads-tied": ("rope.dimension_count",),
    "gemma4_text-experts": ("expert_shared_feed_forward_length",),
    "mamba-untied": ("ssm.dt_b_c_rms",),
    **RECURRENT_LEFT_OUT,
    **LATENT_LEFT_OUT,
}
"""Keys that llama.cpp's converter leaves out (conversion/*.py), by case. It also leaves out the vocabulary size, and in
most files the type of the residual stream."""


@pytest.mark.parametrize("name", LEFT_OUT)
def test_keys_that_llama_cpps_converter_leaves_out_have_its_defaults(name: str, tmp_path: Path) -> None:
    gemma3 = Case("gemma3_text", "windows", {**GEMMA, "num_hidden_layers": 7})
    case = next(case for case in (*NAMED, gemma3) if named(case) == name)
    reader = exported(case, tmp_path)
    prefix = reader.fields["general.architecture"].contents()
    for key in (*LEFT_OUT[name], "vocab_size", "use_parallel_residual"):
        reader.fields.pop(f"{prefix}.{key}", None)
    model, _ = read_gguf(rewritten(reader, tmp_path / "other.gguf"))
    assert differing(model.config, load_hf(tmp_path).config) == {}


SCALING = "rope__scaling__"
USUAL = 1 + 0.1 * math.log(YARN["factor"])


@pytest.mark.parametrize(
    ("name", "change", "is_read"),
    [
        ("llama-gqa", {f"llama__{SCALING}original_context_length": 32}, True),  # conversion/phi.py always writes it
        ("llama-gqa", {f"llama__{SCALING}type": "none"}, True),
        ("llama-gqa", {f"llama__{SCALING}finetuned": True}, True),
        ("granite-scales", {f"granite__{SCALING}finetuned": False}, False),  # no RoPE, see granite.cpp
        ("phi3-partial", {"phi3__attention__sliding_window": 0}, True),
        ("qwen2-yarn", {f"qwen2__{SCALING}yarn_beta_fast": 32.0}, True),
        ("qwen2-yarn", {f"qwen2__{SCALING}yarn_beta_fast": 16.0}, False),
        ("qwen2-yarn", {f"qwen2__{SCALING}yarn_attn_factor": USUAL}, True),
        ("qwen2-yarn", {f"qwen2__{SCALING}yarn_attn_factor": 1.0}, False),
        (
            "ministral3-constant",
            {
                f"mistral3__{SCALING}yarn_beta_fast": 32.0,
                f"mistral3__{SCALING}yarn_beta_slow": 1.0,
            },
            True,
        ),
        ("ministral3-constant", {f"mistral3__{SCALING}attn_factor": 0.9}, False),
        ("qwen3_moe-wide-heads-tied", {"qwen3moe__feed_forward_length": 96}, True),
        ("stablelm-serial", {"stablelm__use_parallel_residual": True}, True),
        ("exaone4-no-window-tied", {"exaone4__attention__sliding_window": 0}, True),
        *RECURRENT_FURTHER,
    ],
)
def test_only_keys_without_an_effect_are_ignored(
    name: str, change: dict[str, Any], is_read: bool, tmp_path: Path
) -> None:
    file = rewritten(
        exported(next(case for case in NAMED if named(case) == name), tmp_path), tmp_path / "other.gguf", **change
    )
    if is_read:
        assert differing(read_gguf(file)[0].config, load_hf(tmp_path).config) == {}
    else:
        with pytest.raises(UserError, match="archlab does not know this key"):
            read_gguf(file)


@pytest.mark.parametrize(("name", "change", "message"), RECURRENT_WRONG)
def test_a_count_must_be_a_whole_number(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    reader = exported(next(case for case in NAMED if named(case) == name), tmp_path)
    with pytest.raises(UserError, match=rf"{re.escape(message)}; allowed: a whole number, at least"):
        read_gguf(rewritten(reader, tmp_path / "other.gguf", **change))


def test_a_scaling_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    """`rope_scaling_type_train` in llama-model.cpp is linear by default."""
    reader = exported(Case("llama", "plain", SMALL), tmp_path)
    model, _ = read_gguf(rewritten(reader, tmp_path / "other.gguf", llama__rope__scaling__factor=2.0))
    position = model.config.model_dump()["position"]
    assert position["scaling"] == {"kind": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mixtral-gqa", "expert_used_count"), ("mamba-tied", "ssm.time_step_rank"), ("granite-scales", "logit_scale"),
        ("cohere2-windows", "attention.sliding_window"), ("deepseek_v2-yarn-one-dense", "attention.key_length_mla"),
        ("youtu-yarn-tied", "attention.kv_lora_rank"), ("gemma2-alternating", "attn_logit_softcapping"),
        ("gemma4_text-experts", "final_logit_softcapping"),
        ("llama-gqa", "attention.layer_norm_rms_epsilon"),
    ],
)  # fmt: skip
def test_a_missing_key_is_named(name: str, key: str, tmp_path: Path) -> None:
    reader = exported(next(case for case in NAMED if named(case) == name), tmp_path)
    whole = f"{reader.fields['general.architecture'].contents()}.{key}"
    del reader.fields[whole]
    with pytest.raises(UserError, match=rf"{re.escape(whole)} missing"):
        read_gguf(rewritten(reader, tmp_path / "other.gguf"))


def test_a_head_that_equals_the_embedding_is_tied(tmp_path: Path) -> None:
    """llama.cpp's converter writes it for GPT-2."""
    case = Case("gpt2", "equal", {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64})
    reader = exported(case, tmp_path)
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    reader.tensors.append(embedding._replace(name="output.weight"))
    model, _ = read_gguf(rewritten(reader, tmp_path / "other.gguf"))
    assert model.config.head.tied


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "bert"}, "general.architecture is bert; archlab imports only llama, mistral3, granite, qwen2"),
        ({"llama__expert_count": 8}, "llama.expert_used_count missing"),
        ({"llama__nope": 8}, "llama.nope is 8; archlab does not know this key"),
        ({"llama__attention__sliding_window": 8}, "llama.attention.sliding_window is 8; archlab does not know this key"),
        ({"llama__rope__dimension_count": 4}, "llama.rope.dimension_count is 4; archlab imports only 8"),
        ({"llama__rope__scaling__type": "longrope"}, "rope.scaling.type is longrope; archlab imports none, linear"),
        ({"llama__rope__scaling__finetuned": False}, "scaling.finetuned is false; archlab does not know this key"),
        ({"llama__use_parallel_residual": True}, "llama.use_parallel_residual is true; archlab imports only false"),
        ({"llama__nope": [True, False]}, "llama.nope is [true, false]; archlab does not know this key"),
        ({"without": "blk.1.attn_q.weight"}, "blk.1.attn_q.weight  missing"),
        ({"without": "token_embd.weight"}, "token_embd.weight missing"),
        ({"llama__feed_forward_length": 40}, "blk.0.ffn_gate.weight  has shape [48, 32], expected [40, 32]"),
        ({"llama__block_count": 2}, "blk.2.attn_k.weight  surplus"),
    ],
)  # fmt: skip
def test_what_archlab_cannot_compute_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = rewritten(exported(Case("llama", "plain", SMALL), tmp_path), tmp_path / "other.gguf", **change)
    with pytest.raises(UserError) as refused:
        read_gguf(file)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{file}: ")


def test_a_file_without_an_architecture_is_refused() -> None:
    with pytest.raises(UserError, match=r"a\.gguf: general\.architecture missing; archlab imports only llama, "):
        architecture_of({}, "a.gguf")


def test_a_file_without_a_tokenizer_is_read_with_a_note(tmp_path: Path) -> None:
    reader = exported(Case("llama", "plain", SMALL), tmp_path)
    del reader.fields["tokenizer.ggml.model"]
    _, notes = read_gguf(rewritten(reader, tmp_path / "other.gguf"))
    assert notes == ["archlab cannot read the tokenizer (none); put its tokenizer.json into the run folder"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("beta", [0.4, 0.5, 0.5], r"xielu.beta is 0.4\d*; archlab imports only 0.5"),
        ("alpha_n", [0.4, 0.5], r"xielu.alpha_n is \[0.4\d*, 0.5\]; allowed: a number for each of the 3 layers"),
        ("alpha_p", None, "xielu.alpha_p missing"),
    ],
)
def test_other_numbers_of_xielu_are_refused(key: str, value: Any, message: str, tmp_path: Path) -> None:
    reader = exported(next(case for case in NAMED if named(case) == "apertus-wide-heads"), tmp_path)
    del reader.fields[f"xielu.{key}"]
    fields = {} if value is None else {f"xielu__{key}": value}
    with pytest.raises(UserError, match=message):
        read_gguf(rewritten(reader, tmp_path / "other.gguf", **fields))


def test_one_number_of_xielu_may_hold_for_all_layers(tmp_path: Path) -> None:
    """`get_key_or_arr` in llama-model-loader.cpp fills all layers with it."""
    reader = exported(next(case for case in NAMED if named(case) == "apertus-wide-heads"), tmp_path)
    model, _ = read_gguf(rewritten(reader, tmp_path / "other.gguf", xielu__alpha_p=0.25))
    assert [model.state_dict()[f"layers.{i}.mlp.activation.alpha_p"].item() for i in range(3)] == [0.25] * 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention__head_count_kv", [2, 1], "attention.head_count_kv has 2 values; allowed: 4, one for each layer"),
        ("embedding_length_per_layer_input", 16, "hidden_size_per_layer_input is 16, which archlab cannot build"),
        ("attention__shared_kv_layers", 2, "num_kv_shared_layers is 2, which archlab cannot build"),
        ("feed_forward_length", [48, 48, 96, 96], "intermediate_size  [48, 48, 96, 96]; allowed: a whole number"),
    ],
)
def test_another_gemma_4_is_refused(key: str, value: Any, message: str, tmp_path: Path) -> None:
    reader = exported(next(case for case in NAMED if named(case) == "gemma4_text-keys-as-values"), tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        read_gguf(rewritten(reader, tmp_path / "other.gguf", **{f"gemma4__{key}": value}))


def test_another_scaling_of_llama_3_is_refused(tmp_path: Path) -> None:
    exported(Case("llama", "other", {**SMALL, "rope_parameters": LLAMA3}), tmp_path)
    with pytest.raises(UserError, match=r"rope_freqs\.weight is not the scaling of Llama 3, the only one"):
        read_gguf(tmp_path / "model.gguf")


@pytest.mark.parametrize("kept", [0, 3, 100, 2000, -200])
def test_a_damaged_file_is_refused_and_leaves_nothing(
    kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(Case("llama", "plain", SMALL), tmp_path)
    file = tmp_path / "cut.gguf"
    file.write_bytes((tmp_path / "model.gguf").read_bytes()[:kept])
    assert app.main(["import", str(file), "--out", str(tmp_path / "run")]) == 2
    assert "cut.gguf: not a GGUF file, or damaged: " in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_other_commands_say_how_to_import_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(Case("llama", "plain", SMALL), tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in ("show", "inspect", "eval", "train", "generate"):
        out = ["--out", "b"] if command == "train" else []
        assert app.main([command, "model.gguf", *out]) == 2
        advice = "model.gguf: is a GGUF file; make a run folder of it: archlab import model.gguf --out FOLDER"
        assert advice in capsys.readouterr().err


GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
TEXTS = ["The cat's mat, 3.1415926 km (naïve) ☃\n\n  日本語 won't", "<s>a<end>\tb  c   ", "x = 10_000;\r\n\tif (y) {"]


@pytest.mark.parametrize(
    ("pre_tokenizer", "whole_words", "begins"),
    [
        (GPT2_WORDS, False, False),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(True), GPT2_WORDS]), False, True),
        (split(WORDS % ""), False, False),
        (split(WORDS % "{1,3}"), True, True),
        (split(WORDS % "{1,3}"), False, False),
    ],
)
def test_the_tokenizer_comes_back(
    pre_tokenizer: pre_tokenizers.PreTokenizer, whole_words: bool, begins: bool, tmp_path: Path
) -> None:
    from archlab.hf.special_tokens import put_before_text

    folder = tmp_path / "hf"
    case = Case("llama", "text", {**SMALL, "vocab_size": 400, "bos_token_id": 0, "eos_token_id": [1, 2]})
    tiny_model(case).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=350, special_tokens=["<s>", "<end>", "<turn>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    if begins:
        put_before_text(tokenizer, 0)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**described, "chat_template": CHATML}))
    export_gguf(folder, tmp_path / "model.gguf")
    out, again = tmp_path / "run", tmp_path / "again"
    assert app.main(["import", str(tmp_path / "model.gguf"), "--out", str(out)]) == 0
    assert app.main(["export", str(out), "--out", str(again)]) == 0
    theirs, found = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(again)
    for text in TEXTS:
        assert found(text).input_ids == theirs(text).input_ids
    assert found.chat_template == CHATML
    assert (found.bos_token, found.eos_token) == ("<s>", "<end>")
    assert json.loads((again / "config.json").read_text())["eos_token_id"] == [1, 2]
    assert torch.equal(load_run(out)[1](torch.arange(9)[None]), load_hf(again)(torch.arange(9)[None]))


def test_an_imported_file_is_tuned_on_conversations_answers_and_is_exported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.parity.test_chat_templates import published

    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    save_gguf(load_hf(published(tmp_path / "hf", "list")), tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    assert app.main(["import", "model.gguf", "--out", "base"]) == 0
    write_chats(tmp_path / "chats.jsonl", some_chats(30))
    data = ["data", "chats.jsonl", "--chat", "messages", "--tokenizer", "base", "--held-out", "0.2", "--out", "chats"]
    assert app.main(data) == 0
    text = ["data.path=chats", "train.document_mask=true", "train.seq_len=256", "train.eval_seq_len=256"]
    assert app.main(["train", "base", *SETTINGS, "train.batch_tokens=256", *text, "--out", "run"]) == 0
    capsys.readouterr()
    for folder in ("base", "run"):
        assert app.main(["generate", folder, "--chat", "--prompt", "the cat", "--max-new-tokens", "2"]) == 0
    assert app.main(["export", "run", "--gguf", "--out", "again.gguf"]) == 0
    fields = GGUFReader(tmp_path / "again.gguf").fields
    assert fields["tokenizer.chat_template"].contents() == CHATML
    assert fields["tokenizer.chat_template.tool_use"].contents() == TOOLS
    assert read_gguf(tmp_path / "again.gguf")[0].origin.files.keys() >= {"tokenizer.json", "chat_template.jinja"}
