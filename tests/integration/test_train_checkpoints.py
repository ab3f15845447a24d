"""Runs that begin from checkpoints made elsewhere: each stored form of a model gives the same first loss."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from archlab.cli import app
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.exchange.configs import load_config
from archlab.infer.convert import convert
from archlab.training.run_folder import RunFolder
from tiny import TRAIN

pytestmark = pytest.mark.usefixtures("shared_cache")
SIZES = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 16, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
SETTINGS = [f"train.{key}={value}" for key, value in TRAIN.items()] + ["train.seq_len=16", "train.eval_seq_len=16"]
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [7, 10]}


def change(folder: Path, **values) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))


def model_of(tied):
    """Return a model whose weights are the same in bfloat16 and float32."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()
    return model.bfloat16().float()


def as_float32(model, folder):
    model.save_pretrained(folder)


def as_bfloat16(model, folder):
    model.bfloat16().save_pretrained(folder)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}


def in_shards(model, folder):
    model.bfloat16().save_pretrained(folder, max_shard_size="20KB")
    assert len([*folder.glob("*.safetensors")]) > 2


def pickled(model, folder):
    model.save_pretrained(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def pickled_in_shards(model, folder):
    in_shards(model, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for name in set(index["weight_map"].values()):
        torch.save(load_file(folder / name), folder / f"pytorch_{name.removesuffix('.safetensors')}.bin")
        (folder / name).unlink()
    for tensor, name in index["weight_map"].items():
        index["weight_map"][tensor] = f"pytorch_{name.removesuffix('.safetensors')}.bin"
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors.index.json").unlink()


def with_a_copy_of_the_head(model, folder):
    """Write a tied head as well, as old versions of transformers did."""
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    stored.setdefault("lm_head.weight", stored["model.embed_tokens.weight"].clone())
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


FORMS = [as_float32, as_bfloat16, in_shards, pickled, pickled_in_shards, with_a_copy_of_the_head]


def begun(folder, out, text, *more):
    """Train from a folder. Return the held-out loss before the first step, and the run's config."""
    assert app.main(["train", str(folder), *SETTINGS, f"data.path={text}", *more, "--out", str(out)]) == 0
    return json.loads((out / "metrics.jsonl").read_text().splitlines()[0])["held_out_loss"], load_config(out)


def loss_of(model, config):
    """Return the held-out loss of a model of transformers, in nats per token."""
    batches = Batches.of(config, open_training_data(config.data, config.model.vocab_size))
    windows = batches.held_out(16, config.train.eval_tokens).windows
    tokens = torch.from_numpy(windows.tokens)
    counted = torch.ones(tokens[:, 1:].shape, dtype=torch.bool) if windows.scored is None else windows.scored
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits[counted]
    return torch.nn.functional.cross_entropy(logits.double(), tokens[:, 1:][counted]).item()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_is_a_start(tmp_path, text, form, tied, capsys):
    form(model_of(tied), tmp_path / "hf")
    first, config = begun(tmp_path / "hf", tmp_path / "run", text)
    n_tensors = 20 if tied else 21
    assert f"(published); tensors: {n_tensors} kept" in capsys.readouterr().err
    assert config.model.head.tied == tied
    assert first == pytest.approx(loss_of(model_of(tied), config), rel=1e-6)
    assert RunFolder(tmp_path / "run").summary().loss < first


def quantized(folder):
    """Save a Qwen 3 whose layer matrices are stored as FP8 in blocks. Return the model of the dequantized tensors."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)).eval().bfloat16()
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for name, tensor in model.state_dict().items():
        if name.endswith("proj.weight"):
            grid = [-(-n // size) for n, size in zip(tensor.shape, FP8["weight_block_size"], strict=True)]
            scales = 0.5 + torch.rand(grid, generator=torch.Generator().manual_seed(len(name)))
            stored[name], stored[f"{name}_scale_inv"] = tensor.to(torch.float8_e4m3fn), scales
            whole = scales.repeat_interleave(7, 0).repeat_interleave(10, 1)[: tensor.shape[0], : tensor.shape[1]]
            with torch.no_grad():
                tensor.copy_(stored[name].float() * whole)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder, quantization_config=FP8)
    return model.float()


def test_fp8_is_a_start_and_what_comes_out_is_not_quantized(tmp_path, text):
    theirs = quantized(tmp_path / "hf")
    first, config = begun(tmp_path / "hf", tmp_path / "run", text)
    assert first == pytest.approx(loss_of(theirs, config), rel=1e-6)
    assert app.main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())
    again = Qwen3ForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert loss_of(again, config) == pytest.approx(RunFolder(tmp_path / "run").summary().loss, rel=1e-6)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_quantizations_are_refused_by_name(tmp_path, text, how, named, capsys):
    as_bfloat16(model_of(False), tmp_path / "hf")
    change(tmp_path / "hf", quantization_config=how)
    message = f"quantization_config is '{named}'; allowed: quant_method mxfp4, fp8, gptq, awq"
    settings = [*SETTINGS, f"data.path={text}", "--out", str(tmp_path / "run")]
    for command in (
        ["train", str(tmp_path / "hf"), *settings],
        ["train", "tiny-llama", f"train.start={tmp_path / 'hf'}", *settings],
    ):
        assert app.main(command) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
    assert app.main(["inspect", str(tmp_path / "hf")]) == 2
    assert message in " ".join(capsys.readouterr().out.split())


def test_a_missing_shard_is_named_before_anything_is_written(tmp_path, text, capsys):
    in_shards(model_of(False), tmp_path / "hf")
    lost = sorted((tmp_path / "hf").glob("*.safetensors"))[1]
    lost.unlink()
    assert (
        app.main(["train", str(tmp_path / "hf"), *SETTINGS, f"data.path={text}", "--out", str(tmp_path / "run")]) == 2
    )
    assert f"{lost.name}: missing, but model.safetensors.index.json names it" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "run").exists()


def test_a_start_in_bfloat16_may_be_gone_when_the_run_is_extended(tmp_path, text):
    in_shards(model_of(True), tmp_path / "hf")
    longer, constant = "train.tokens=1280", ["train.schedule=constant", "train.warmup=0"]
    begun(tmp_path / "hf", tmp_path / "run", text, *constant)
    begun(tmp_path / "hf", tmp_path / "whole", text, *constant, longer)
    shutil.rmtree(tmp_path / "hf")
    assert app.main(["train", str(tmp_path / "run"), longer, "--out", str(tmp_path / "run")]) == 0
    assert RunFolder(tmp_path / "run").summary().loss == RunFolder(tmp_path / "whole").summary().loss


def test_an_exact_change_of_weights_in_bfloat16_does_not_change_the_logits(tmp_path):
    """The logits are compared in float32, so a pass in 16 bits does not look like a change of the weights."""
    as_bfloat16(model_of(True), tmp_path / "hf")
    converted = convert(tmp_path / "hf", "model.head.tied=false", out=tmp_path / "untied")
    assert converted.difference.largest < 1e-6
    written = load_file(tmp_path / "untied" / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_weights_of_several_dtypes_are_written_without_rounding(tmp_path):
    """Published checkpoints may have matrices in bfloat16 and norms in float32."""
    as_bfloat16(model_of(True), tmp_path / "hf")
    stored = load_file(tmp_path / "hf" / "model.safetensors")
    stored["model.norm.weight"] = torch.rand(SIZES["hidden_size"])
    save_file(stored, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    converted = convert(tmp_path / "hf", "model.head.tied=false", out=tmp_path / "untied")
    assert converted.difference.largest < 1e-6
    written = load_file(tmp_path / "untied" / "model.safetensors")
    assert torch.equal(written["model.norm.weight"], stored["model.norm.weight"])
    assert {tensor.dtype for tensor in written.values()} == {torch.float32}
