"""A published model after `archlab convert`, as transformers loads it."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from archlab.cli import app
from archlab.config.components.rope_scaling import NoScaling
from archlab.config.layers import layer_configs
from archlab.hf.rope import without_idle_scalings
from tiny import config

torch.set_num_threads(1)

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
TOKENS = torch.arange(60)[None]
FACTOR_1 = {
    "linear": "position interpolation",
    "llama3": "Llama 3 scaling",
    "yarn": "YaRN",
}
"""Scalings with a factor, and the names of the changes."""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def converted(capsys: pytest.CaptureFixture[str], published: Path, *changes: str) -> tuple[LlamaForCausalLM, str]:
    """Return the converted model in transformers, and what the command printed."""
    capsys.readouterr()
    assert app.main(["convert", str(published), *changes, "--out", str(published.parent / "new")]) == 0
    model = AutoModelForCausalLM.from_pretrained(published.parent / "new").eval()
    return model, re.sub(r" +", " ", capsys.readouterr().out)


@torch.no_grad()
def logits(model: LlamaForCausalLM) -> torch.Tensor:
    return model(TOKENS).logits


def in_transformers(folder: Path, **changes: object) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, **changes).eval()


@pytest.mark.parametrize("kind", FACTOR_1)
def test_a_scaling_by_1_is_exact_and_is_what_transformers_computes(
    kind: str, published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = "" if kind == "linear" else ", original_max_seq_len: 16"
    model, printed = converted(capsys, published, f"model.position.scaling={{kind: {kind}, factor: 1{length}}}")
    assert f"{FACTOR_1[kind]} exact" in printed
    assert "the largest difference is 0 of the largest logit" in printed
    theirs = {"rope_type": kind, "factor": 1.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    theirs |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    scaled = in_transformers(published, rope_parameters=theirs)
    assert torch.equal(logits(model), logits(in_transformers(published)))
    torch.testing.assert_close(logits(model), logits(scaled))


def test_the_list_of_tensors_says_what_was_dropped(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers at another place are kept, and the values are those of transformers without layer 1."""
    model, printed = converted(capsys, published, "model.n_layers=3", "train.start_layers=[0, 2, 3]")
    assert "layers 0 to 2: attention.q.weight kept" in printed
    assert "trained layer 1: attention.q.weight dropped" in printed
    assert printed.count(" dropped") == 9
    expected = in_transformers(published)
    del expected.model.layers[1]
    for index, layer in enumerate(expected.model.layers):
        layer.self_attn.layer_idx = index
    expected.config.num_hidden_layers = 3
    torch.testing.assert_close(logits(model), logits(expected))


def test_what_no_family_can_express_is_refused_with_the_way_out(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [str(published), "model.norm.weight=false", "--out", str(published.parent / "new")]
    assert app.main(["convert", *wanted]) == 2
    head, *_, last = capsys.readouterr().err.strip().splitlines()
    assert head == "LlamaForCausalLM cannot express this model"
    assert last == "a run folder can hold every model: make one with `archlab import`, and convert that"
    run = published.parent / "run"
    assert app.main(["import", str(published), "--out", str(run)]) == 0
    assert app.main(["convert", str(run), *wanted[1:]]) == 0
    assert "folded norm weights exact" in re.sub(r" +", " ", capsys.readouterr().out)


def test_another_position_encoding_is_one_change(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["convert", str(published), "model.position.kind=none", "--out", str(published.parent / "b")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("approximate") == 1
    assert "scaling" not in printed


@pytest.mark.parametrize(
    ("model", "local", "full"),
    [
        ("{kind: yarn, factor: 1, original_max_seq_len: 8}", "{}", "{position.scaling.factor: 4.0}"),
        ("{kind: linear, factor: 4}", "{position.scaling.factor: 1}", "{position.theta: 100.0}"),
        ("{kind: none}", "{position.scaling: {kind: linear, factor: 1}}", "{position.kind: none}"),
    ],
)
def test_an_export_leaves_out_scalings_by_1_layer_by_layer(model: str, local: str, full: str) -> None:
    built = config(
        f"model.position.scaling={model}", f"model.layers={{local: {local}, full: {full}, pattern: [local, full]}}"
    ).model
    before, after = layer_configs(built), layer_configs(without_idle_scalings(built))
    assert before[0].position.scaling.kind != "none"  # pyright: ignore[reportAttributeAccessIssue]
    assert after[0].position == before[0].position.model_copy(update={"scaling": NoScaling()})
    assert after[1] == before[1]
