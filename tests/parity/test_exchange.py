"""Exchange with transformers: export of trained models, import of published ones, sharded files, pooled heads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import archlab
from archlab.cli import app
from archlab.config.io import build_config
from archlab.errors import UserError
from archlab.exchange import save
from archlab.exchange.load import load_hf
from archlab.exchange.save import save_pretrained
from archlab.families.registry import FAMILIES
from archlab.infer.load import from_pretrained
from archlab.model.decoder import Decoder
from tests.parity.cases import CASES
from tests.parity.tiny import Case, tiny_model
from tiny import write_text

torch.set_num_threads(1)

SIZES = ["model.vocab_size=300", "model.d_model=32", "model.n_layers=2", "model.max_seq_len=64"]
SHAPES = {
    "llama": ["llama-3-8b", *SIZES, "model.attention={n_heads: 4, n_kv_heads: 2, head_dim: 8}", "model.mlp.d_ff=64"],
    "gpt2": ["gpt-2", *SIZES, "model.attention.n_heads=4", "model.attention.head_dim=8", "model.mlp.d_ff=128"],
    "gemma2": [
        "gemma-2-9b", *SIZES, "model.attention.n_heads=4", "model.attention.n_kv_heads=2", "model.attention.head_dim=8",
        "model.layers.local={attention.window: 7}", "model.mlp.d_ff=64",
    ],
}  # fmt: skip
TRAIN = [
    "train.tokens=1280", "train.batch_tokens=128", "train.seq_len=32", "train.eval_tokens=256", "train.lr=0.01",
    "train.dtype=float32", "train.device=cpu",
]  # fmt: skip


def case_of(model_type: str, name: str = "") -> Case:
    return next(case for case in CASES if case.model_type == model_type and name in case.name)


def published(folder: Path, model_type: str = "llama", **options) -> Path:
    tiny_model(case_of(model_type)).to(options.pop("dtype", torch.float32)).save_pretrained(folder, **options)
    return folder


def same_weights(a: archlab.Decoder, b: archlab.Decoder) -> bool:
    left, right = dict(a.named_parameters()), dict(b.named_parameters())
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and torch.equal(left[n], right[n]) for n in left
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_trained_with_archlab_works_in_transformers(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    data = f"data.path={write_text(tmp_path)}"
    run, out = tmp_path / "run", tmp_path / "hf"
    assert app.main(["train", *SHAPES[shape], *TRAIN, data, "--out", str(run)]) == 0
    assert app.main(["export", str(run), "--out", str(out)]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager").eval()
    assert theirs.config.model_type == shape
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    ours = archlab.from_pretrained(run)
    tokens = torch.tensor([[theirs.config.bos_token_id, *tokenizer("the cat sat on").input_ids]])
    # Without a mask, transformers would treat our first token as padding.
    options = {"attention_mask": torch.ones_like(tokens), "eos_token_id": None, "pad_token_id": 0}
    options |= {"max_new_tokens": 20, "do_sample": False}
    assert torch.equal(archlab.generate(ours, tokens, max_new_tokens=20), theirs.generate(tokens, **options))
    with torch.no_grad():
        logits = theirs(tokens).logits
        assert (ours(tokens) - logits).abs().max() <= 1e-4 * logits.std()
    assert tokenizer.eos_token_id == theirs.generation_config.eos_token_id == theirs.config.eos_token_id
    again = archlab.from_pretrained(out)
    assert same_weights(again, ours)
    archlab.save_pretrained(again, tmp_path / "twice")
    for file in out.iterdir():
        if file.name != "model.safetensors":
            assert (tmp_path / "twice" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2", "falcon", "bloom"])
def test_load_save_load_is_bit_identical(model_type: str, dtype: torch.dtype, tmp_path: Path) -> None:
    ours = archlab.from_pretrained(published(tmp_path / "hf", model_type, dtype=dtype))
    assert {p.dtype for p in ours.parameters()} == {dtype}
    assert archlab.save_pretrained(ours, tmp_path / "one") == model_type
    again = archlab.from_pretrained(tmp_path / "one")
    assert same_weights(ours, again)
    archlab.save_pretrained(again, tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "one"))
    assert all(torch.equal(before[name], after[name]) for name in before.keys() & after.keys())


OTHER_NAMES = {other: name for name, family in FAMILIES.items() for other in family.other_model_types}


@pytest.mark.parametrize("model_type", OTHER_NAMES)
def test_a_checkpoint_with_another_name_is_saved_as_its_family(model_type: str, tmp_path: Path) -> None:
    folder = published(tmp_path / "hf", OTHER_NAMES[model_type])
    before = archlab.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    ours = archlab.from_pretrained(folder)
    assert same_weights(before, ours)
    assert before.config == ours.config
    assert archlab.inspect(folder).architecture == config["architectures"][0]
    assert archlab.save_pretrained(ours, tmp_path / "saved") == OTHER_NAMES[model_type]


@torch.no_grad()
@pytest.mark.parametrize("in_config", [{}, {"dtype": None}, {"dtype": None, "torch_dtype": "float32"}], ids=str)
@pytest.mark.parametrize(
    ("model_type", "wide"),
    [
        ("llama", "lm_head"), ("gpt2", "wte"), ("phi", ".bias"), ("mixtral", "experts.1."), ("mamba2", "conv1d"),
        ("qwen3_next", "shared_expert_gate"), ("qwen3_next", "A_log"), ("llama", "norm"), ("mixtral", "gate.weight"),
        ("gpt_oss", "sinks"),
    ],
)  # fmt: skip
def test_a_file_of_mixed_formats_is_the_model_of_its_numbers(
    model_type: str, wide: str, in_config: dict[str, Any], tmp_path: Path
) -> None:
    """All numbers fit into bfloat16. Matrices get the dtype named in config.json; norms and the like keep theirs."""
    folder = published(tmp_path, model_type, dtype=torch.bfloat16)
    tokens, uniform = torch.arange(3, 40)[None], load_hf(folder)
    tensors = load_file(folder / "model.safetensors")
    mixed = {name: tensor.float() if wide in name else tensor for name, tensor in tensors.items()}
    assert {tensor.dtype for tensor in mixed.values()} == {torch.float32, torch.bfloat16}
    save_file(mixed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | in_config))
    found = load_hf(folder)
    matrices_agree = wide in ("A_log", "norm", "gate.weight", "sinks", ".bias")
    if "torch_dtype" in in_config and not matrices_agree:
        uniform.float()
    torch.testing.assert_close(found(tokens), uniform(tokens), rtol=0, atol=0)
    assert archlab.save_pretrained(found, tmp_path / "back") == model_type


def test_the_special_tokens_are_kept(tmp_path: Path) -> None:
    folder = published(tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": 5, "eos_token_id": [6, 7]}))
    model = archlab.from_pretrained(folder)
    archlab.save_pretrained(model, tmp_path / "back")
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (back["bos_token_id"], back["eos_token_id"]) == (5, [6, 7])


def test_sharded_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    single_file = load_hf(published(tmp_path / "single"))
    shards = published(tmp_path / "shards", max_shard_size="20KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    assert same_weights(load_hf(shards), single_file)
    monkeypatch.setattr(save, "SHARD_BYTES", 20_000)
    save_pretrained(single_file, tmp_path / "ours")
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 2
    theirs, back = (transformers.AutoModelForCausalLM.from_pretrained(f) for f in (shards, tmp_path / "ours"))
    assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), back.parameters(), strict=True))
    assert same_weights(load_hf(tmp_path / "ours"), single_file)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_import_and_export_change_nothing(dtype: torch.dtype, tmp_path: Path) -> None:
    folder, run, out = (tmp_path / name for name in ("hf", "run", "out"))
    published(folder, dtype=dtype)
    assert app.main(["import", str(folder), "--out", str(run)]) == 0
    assert same_weights(from_pretrained(run), from_pretrained(folder))
    assert app.main(["export", str(run), "--out", str(out)]) == 0
    assert same_weights(from_pretrained(out), from_pretrained(folder))
    assert json.loads((out / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert app.main(["import", str(folder), "--out", str(run)]) == 2


def test_an_imported_model_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is trained, exported, imported and trained on, with its own tokenizer only and from its own weights."""
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    data = f"data.path={write_text(tmp_path)}"
    run, hf, more = (str(tmp_path / name) for name in ("run", "hf", "more"))
    long = [f"train.tokens={128 * 60}" if s.startswith("train.tokens") else s for s in TRAIN]
    assert app.main(["train", *SHAPES["llama"], *long, data, "--out", run]) == 0
    assert app.main(["export", run, "--out", hf]) == 0
    assert app.main(["import", hf, "--out", more]) == 0
    scores = [score(folder, (data, *TRAIN[2:4])) for folder in (run, hf, more)]
    assert scores[0] == pytest.approx(scores[1]) == pytest.approx(scores[2])
    other = tmp_path / "other"
    other.mkdir()
    wrong = f"data.path={write_text(other, lines=300)}"
    assert app.main(["train", more, *TRAIN, wrong, "--out", more]) == 2
    assert app.main(["train", more, "model.n_layers=1", *TRAIN, data, "--out", more]) == 2
    assert app.main(["train", more, *TRAIN, data, "--out", more]) == 0
    first = json.loads((tmp_path / "more" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["held_out_loss"] < 4  # log(300) is 5.7
    assert app.main(["train", more, *TRAIN, data, "--out", more]) == 0
    assert app.main(["export", more, "--out", str(tmp_path / "trained")]) == 0
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained").config.model_type == "llama"


def score(folder: str, overrides: tuple[str, ...]) -> float:
    from scores import score

    found = score(folder, (*overrides, "train.dtype=float32", "train.device=cpu"), 256)
    assert found.trained
    return found.bits_per_byte


@pytest.mark.parametrize("kept", [1, 2])
def test_pooled_heads_are_means_of_adjacent_heads(kept: int, tmp_path: Path) -> None:
    case = Case("qwen2", "mha", {**case_of("qwen2").hf, "num_key_value_heads": 4})
    tiny_model(case).bfloat16().save_pretrained(tmp_path / "mha")
    out = tmp_path / "gqa"
    assert app.main(["convert", str(tmp_path / "mha"), f"model.attention.n_kv_heads={kept}", "--out", str(out)]) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("mha", "gqa"))
    for name, tensor in before.items():
        if ".k_proj." not in name and ".v_proj." not in name:
            assert torch.equal(tensor, after[name]), name
            continue
        heads = tensor.float().numpy().reshape(kept, 4 // kept, 8, -1)
        expected = torch.from_numpy(heads.mean(axis=1)).bfloat16().reshape(after[name].shape)
        assert torch.equal(expected, after[name]), name
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager")
    tokens = torch.randint(3, 61, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = theirs.eval()(tokens).logits
        assert (from_pretrained(out, torch.float32)(tokens) - logits).abs().max() <= 1e-4 * logits.std()


def test_heads_that_do_not_divide_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(published(tmp_path / "hf"))
    assert app.main(["convert", folder, "model.attention.n_kv_heads=3", "--out", str(tmp_path / "out")]) == 2
    assert "model.attention.n_kv_heads  3 does not divide n_heads = 4; allowed: 1, 2, 4" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_positions_that_only_layer_kinds_have_are_expressed(tmp_path: Path) -> None:
    model = {"vocab_size": 32, "d_model": 32, "n_layers": 4, "attention": {"n_heads": 4}, "position": "none"}
    kinds = {"turns": {"position": {"kind": "rope", "theta": 5e4}}, "stands": {}}
    layers = {**kinds, "pattern": ["turns", "turns", "turns", "stands"]}
    made = Decoder(build_config({"model": {**model, "layers": layers}}).model)
    assert save_pretrained(made, tmp_path / "hf") == "smollm3"
    tokens = torch.arange(9)[None]
    torch.testing.assert_close(load_hf(tmp_path / "hf")(tokens), made.eval()(tokens))


@torch.no_grad()
@pytest.mark.parametrize(
    ("model_type", "name", "without"),
    [
        ("qwen3_next", "by-interval", {"full_attention_interval": 9}),
        ("lfm2", "hybrid", {"layer_types": ["conv"] * 3}),
        ("deepseek_v2", "", {"first_k_dense_replace": 9}),
        ("qwen3_moe", "", {"num_experts": 0}),
        ("qwen2_moe", "", {"shared_expert_intermediate_size": 0}),
        ("qwen3_next", "by-interval", {"shared_expert_intermediate_size": 0}),
    ],
)
def test_hybrids_and_mixtures_that_lack_a_part(
    model_type: str, name: str, without: dict[str, Any], tmp_path: Path
) -> None:
    """The models have no attention (transformers then has no cache), no experts, or no shared expert."""
    case = Case(model_type, "without", {**case_of(model_type, name).hf, **without})
    (theirs := tiny_model(case)).save_pretrained(tmp_path / "hf")
    ours, tokens = archlab.from_pretrained(tmp_path / "hf"), torch.arange(3, 40)[None]
    assert archlab.save_pretrained(ours, tmp_path / "back") == model_type
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", attn_implementation="eager").eval()
    for model in (theirs, back):
        logits = model(tokens, use_cache=False).logits
        assert (ours(tokens) - logits).abs().max() <= 1e-4 * logits.std()
    if ours.config.attention.kind == "none":
        needs = (
            "LlamaForCausalLM needs the key num_attention_heads, but model.attention.kind is none, which has no field n"
        )
        with pytest.raises(UserError, match=needs):
            archlab.save_pretrained(ours, tmp_path / "llama", "llama")


def test_mamba_2s_embedding_has_an_old_name(tmp_path: Path) -> None:
    """A tied head that is also stored is compared with the embedding under its old name, too."""
    folder = published(tmp_path / "hf", "mamba2")
    tensors, expected = load_file(folder / "model.safetensors"), load_hf(folder)
    old = {name.replace("embeddings", "embedding"): tensor for name, tensor in tensors.items()}
    assert old.keys() != tensors.keys()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    assert same_weights(load_hf(folder), expected)
    head = old["backbone.embedding.weight"] + 1
    save_file(old | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lm_head\.weight  differs from the embedding"):
        load_hf(folder)


def test_the_order_of_rounding_in_a_norm_does_not_matter_in_float32(tmp_path: Path) -> None:
    model = archlab.Decoder(
        archlab.load_config("tiny-llama", "model.embedding.scale=1", "model.norm.cast=after_weight").model
    )
    assert archlab.save_pretrained(model, tmp_path / "wide") == "llama"
    with pytest.raises(UserError, match=r"model.norm.cast: after_weight in this model, before_weight if exported"):
        archlab.save_pretrained(model.bfloat16(), tmp_path / "narrow", "llama")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_constant_must_have_its_value_in_the_format_of_the_file(dtype, tmp_path):
    """Xielu's beta is a tensor in the file. archlab supports 0.5 only."""
    folder = published(tmp_path, "apertus", dtype=dtype)
    file, name = folder / "model.safetensors", "model.layers.1.mlp.act_fn.beta"
    tensors = load_file(file)
    assert load_hf(folder).config.mlp.activation == "xielu"
    save_file(tensors | {name: tensors[name] * 1.005}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"{name}  is not 0.5"):
        load_hf(folder)
