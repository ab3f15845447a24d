"""Proposals have the requested size and the proportions of a family, and they load as configs."""

import math
import re

import pytest
import yaml

from archlab.atlas.models import entries
from archlab.cli import app
from archlab.config.io import build_config, overlay
from archlab.config.layers import encoder_of, layer_configs
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.pricing.memory import kv_cache_bytes
from archlab.pricing.params import parameters
from archlab.review.findings import warnings
from archlab.sizing.family import FamilyMember
from archlab.sizing.propose import propose
from archlab.sizing.resize import resized
from archlab.sizing.scale import ScalableModel

ATLAS = entries()
SHAPES = {entry.preset: entry.config.model for entry in ATLAS}


@pytest.fixture(autouse=True)
def _read_once(monkeypatch):
    monkeypatch.setattr("archlab.sizing.propose.entries", lambda: ATLAS)


def shape(model):
    return layer_configs(model), model.vocab_size


DENSE = ("llama-3", "qwen3", "gemma-3", "gpt-2", "falcon", "smollm2", "tiny-llama")
SIZES = (10e6, 100e6, 1.3e9, 21e9, 500e9)


@pytest.mark.parametrize("like", DENSE)
@pytest.mark.parametrize("size", SIZES)
def test_dense_models_of_any_size(like, size):
    """The size is within 1%, ratios are close to those of the family, and shapes run well on hardware unless the
    family's own do not."""
    vocabulary = ("model.vocab_size=8192",) if size < 500e6 else ()
    found = propose(like, *vocabulary, params=int(size))
    assert parameters(found.model.config.model).total == pytest.approx(size, rel=0.01)
    for member in found.family:
        assert 0.35 < found.model.ff_ratio / member.ff_ratio < 2.9
    own = {re.sub(r"\d+", "", text) for name in found.family for text in warnings(name.config)}
    assert {re.sub(r"\d+", "", text) for text in warnings(found.model.config)} <= own | {"n_layers  (usual: up to )"}
    assert found.model.n_layers <= 105 or found.model.n_layers <= max(member.n_layers for member in found.family)


@pytest.mark.parametrize(
    "name",
    [
        "llama-3-8b", "llama-3.1-405b", "llama-3.2-1b", "gpt-2-xl", "falcon-7b", "gemma-3-270m", "gemma-2-27b", "qwen2.5-7b",
        "smollm2-135m", "palm-540b", "phi-4-14b", "bloom-176b", "qwen3-30b-a3b", "deepseek-v3", "granite-3-8b", "t5-small",
        "t5-v1.1-xxl", "transformer-big",
    ],
)  # fmt: skip
def test_the_size_of_a_preset_gives_the_preset(name):
    size = parameters(SHAPES[name]).total
    proposed = propose(name, params=size)
    assert shape(proposed.model.config.model) == shape(SHAPES[name])
    assert proposed.nearest.preset == name


@pytest.mark.parametrize(
    ("like", "size"), [("t5-small", 20e6), ("transformer", 65e6), ("t5-v1.1-xxl", 3e9), ("mt5", 1e9)]
)
def test_an_encoder_decoder_keeps_as_many_layers_in_both_stacks(like, size):
    model = propose(like, params=int(size)).model.config.model
    assert parameters(model).total == pytest.approx(size, rel=0.01)
    assert model.encoder.n_layers == model.n_layers
    assert layer_configs(encoder_of(model))[0].mlp.d_ff == model.mlp.d_ff


@pytest.mark.parametrize(
    ("like", "size", "ties"), [("llama-3", 1e9, True), ("llama-3", 8e9, False), ("olmo-2", 1.5e9, False)]
)
def test_a_head_larger_than_published_ones_is_tied(like, size, ties):
    """Checked by hand: among models from 0.5B to 2B in the atlas, OLMo 2 1B has the largest untied head, with 100,352 x
    2,048 of 1.485B parameters.

    The 128,256 rows of Llama 3 would be a larger share of 1B. Of 8B they are a smaller share than in other models.
    """
    found = propose(like, params=int(size))
    assert found.model.config.model.head.tied == ties
    assert (found.untied is not None) == ties
    assert parameters(found.model.config.model).total == pytest.approx(size, rel=0.01)
    if ties:
        assert found.untied.value > 100_352 * 2048 / 1_485e6
        assert parameters(found.model.config.model).embedding / size < 0.3


def test_the_person_decides_about_the_head(capsys):
    found = propose("llama-3", "model.head={tied: false}", params=10**9)
    assert not found.model.config.model.head.tied
    assert app.main(["size", "--params", "1B", "--like", "llama-3", "model.head.tied=false"]) == 0
    untied = " ".join(capsys.readouterr().out.replace("#", "").split())
    assert "check: untied head / all parameters 0.23 (usual: up to 0.138)" in untied
    assert "13 of 17 models tie the head" in untied
    assert app.main(["size", "--params", "1B", "--like", "llama-3"]) == 0
    assert "check:" not in capsys.readouterr().out


def test_between_two_sizes_of_a_family():
    """Checked by hand: qwen3's 8B has d / layers 113.8, its 32B has 80, and its 14B is not in the atlas."""
    found = propose("qwen3", params=16_000_000_000)
    assert [member.name for member in found.family] == ["qwen3-8b", "qwen3-32b"]
    assert 80 < found.model.aspect < 114
    assert 3 < found.model.ff_ratio < 5
    assert found.model.multi_head.n_kv_heads == 8


def test_flops():
    """Chinchilla: C = 6 N * 20 N."""
    found = propose("llama-3", flops=1e21)
    assert found.model.counted.total == pytest.approx(math.sqrt(1e21 / 120), rel=0.01)
    mixture = propose("deepseek-v2", flops=1e21).model.counted
    assert mixture.active == pytest.approx(math.sqrt(1e21 / 120), rel=0.01)
    assert mixture.total > 2 * mixture.active


@pytest.mark.parametrize(
    ("like", "context"), [("llama-3", 8192), ("gemma-3", 131_072), ("gpt-2", 1024), ("llama-2", 100_000)]
)
@pytest.mark.slow
def test_memory(like, context):
    memory = 16 * 2**30
    model = propose(like, memory=memory, context=context).model.config.model
    used = 2 * parameters(model).total + kv_cache_bytes(model, context)
    assert 0.95 * memory <= used <= memory
    assert model.max_seq_len >= context


@pytest.mark.parametrize(
    ("like", "params", "active"),
    [("qwen3", 30e9, 3e9), ("deepseek-v2", 60e9, 6e9), ("mixtral", 60e9, 17e9), ("qwen3", None, 1e9)],
)
def test_mixtures(like, params, active):
    found = propose(like, params=params and int(params), active=int(active))
    experts = [layer.mlp for layer in layer_configs(found.model.config.model) if layer.mlp.kind == "moe"]
    theirs = [layer.mlp for layer in layer_configs(SHAPES[found.base]) if layer.mlp.kind == "moe"]
    assert (experts[-1].experts, experts[-1].active) == (theirs[-1].experts, theirs[-1].active)
    assert found.model.counted.active == pytest.approx(active, rel=0.05 if params else 0.01)
    if params:
        assert found.model.counted.total == pytest.approx(params, rel=0.01)


def test_layers_that_differ_keep_their_proportion():
    model = propose("deepseek-v3", params=100_000_000_000).model.config.model
    kinds = [layer.mlp.kind for layer in layer_configs(model)]
    assert kinds == sorted(kinds), "gated ones first, then moe"
    assert kinds.count("gated") / len(kinds) == pytest.approx(3 / 61, abs=0.03)
    dense = layer_configs(model)[0].mlp.d_ff
    assert dense / model.mlp.d_ff == pytest.approx(18432 / 2048, rel=0.05)


def test_widths_of_experts_in_some_layers_are_scaled():
    sparse = {"kind": "moe", "experts": 4, "active": 2, "d_ff": 256, "shared": {"d_ff": 512}, "latent": {"width": 128}}
    raw = {
        "model": {
            "d_model": 256, "n_layers": 4, "vocab_size": 1000, "max_seq_len": 64, "attention": {"n_heads": 4},
            "mlp": {"kind": "gated", "activation": "silu", "d_ff": 1024},
            "layers": {"dense": {}, "sparse": {"mlp": sparse}, "pattern": ["dense", "sparse"]},
        },
    }  # fmt: skip
    scaled = build_config(overlay(raw, resized(raw, "mixed", 40_000_000), Config), (), "mixed").model
    mlp, factor = layer_configs(scaled)[1].mlp, scaled.mlp.d_ff / 1024
    assert factor > 1.5
    for found, before in ((mlp.d_ff, 256), (mlp.shared.d_ff, 512), (mlp.latent.width, 128)):
        assert found / before == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize(("languages", "vocabulary"), [(None, 32_000), (1, 32_000), (2, 100_352), (50, 151_936)])
def test_the_vocabulary_is_the_familys_unless_the_languages_ask_for_another(languages, vocabulary):
    found = propose("llama-2", params=3_000_000_000, languages=languages)
    assert found.model.config.model.vocab_size == vocabulary
    assert found.model.counted.total == pytest.approx(3e9, rel=0.01)


# --- the command --------------------------------------------------------------------------------------------------


def run(capsys, *arguments, code=0):
    assert app.main(["size", *arguments]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_what_is_printed_is_a_config(capsys, tmp_path):
    printed = run(capsys, "--params", "1B", "--context", "32768", "model.head.tied=true")
    (tmp_path / "mine.yaml").write_text(printed)
    config = load_config(tmp_path / "mine.yaml")
    (count,) = re.findall(r"^# ([\d,]+) parameters", printed)
    assert parameters(config.model).total == int(count.replace(",", "")) == pytest.approx(1e9, rel=0.01)
    assert (config.model.max_seq_len, config.model.head.tied) == (32768, True)
    assert config.model.position == SHAPES["llama-3-8b"].position
    assert yaml.safe_load(printed)["base"] == "llama-3-8b"
    assert max(map(len, printed.splitlines())) <= 80
    assert run(
        capsys, "--params", "1B", "--context", "32768", "model.head.tied=true", "--out", str(tmp_path / "x.yaml")
    )
    assert (tmp_path / "x.yaml").read_text() == printed


def test_what_is_said_beside_it(capsys):
    printed = run(capsys, "--flops", "1e21", "--memory", "16GiB", "--like", "llama-3")
    printed = printed.replace("\n#   ", " ")
    assert re.search(
        r"trained with 1e\+21 FLOPs: \S+ tokens \(\S+ per parameter\) counted for sequences of 8,192", printed
    )
    assert "by the rule C = 6 N D" in printed
    assert re.search(r"\d+% of 16 GiB", printed)
    assert "closest published model: " in printed
    assert "% of 637 GiB" in run(capsys, "--hardware", "h100x8", "--like", "llama-3")
    assert "active" not in printed


def test_encoders_grow_without_a_cache_and_next_to_encoders(capsys):
    printed = run(capsys, "--params", "1B", "--like", "modernbert")
    assert "an encoder needs no KV cache" in printed
    assert "KV heads:" not in printed
    assert "closest published model: ModernBERT large" in printed
    assert "closest published model: GPT-2" in run(capsys, "--params", "124M", "--like", "gpt-2")


@pytest.mark.parametrize("like", ["electra", "modernbert", "phi-2", "llama-3", "gpt-2", "bert"])
@pytest.mark.parametrize("size", [20e6, 50e6, 300e6, 2e9])
def test_heads_have_d_model_dimensions_together_if_those_of_the_family_have(like: str, size: float):
    """50M like ELECTRA once had 8 heads of 64 at d_model 448."""
    found = propose(like, "model.vocab_size=8192", params=int(size))
    assert all(member.n_heads * member.head_dim == member.d_model for member in found.family)
    assert found.model.n_heads * found.model.head_dim == found.model.d_model
    assert found.model.head_dim % 8 == 0


@pytest.mark.parametrize("n_layers", [4, 5, 22, 28, 39])
def test_only_the_first_layers_of_modernbert_are_special(n_layers):
    """Three layers alternate, whatever the depth. The patterns of other models are stretched."""
    member = FamilyMember("modernbert-large", load_config("modernbert-large"))
    pattern = ScalableModel(member, {}).pattern(n_layers)
    assert pattern == ["first", *("full" if i % 3 == 0 else "local" for i in range(1, n_layers))]
    dense = FamilyMember("deepseek-v3", load_config("deepseek-v3"))
    assert ScalableModel(dense, {}).pattern(30).count("dense") == 2


@pytest.mark.parametrize(
    ("like", "size"), [("qwen3-30b-a3b", "5B"), ("deepseek-v3", "100B"), ("gemma-3", "2B"), ("bert", "1B")]
)
def test_what_differs_is_all_that_is_written(like, size, capsys, tmp_path):
    """Layer kinds, latent attention and experts stay the same."""
    (tmp_path / "mine.yaml").write_text(printed := run(capsys, "--params", size, "--like", like))
    model = load_config(tmp_path / "mine.yaml").model
    (count,) = re.findall(r"^# ([\d,]+) parameters", printed)
    assert parameters(model).total == int(count.replace(",", ""))
    base = SHAPES[yaml.safe_load(printed)["base"]]
    assert (model.mlp.kind, model.attention.kind, model.position) == (base.mlp.kind, base.attention.kind, base.position)
    assert set(model.layers.kinds if model.layers else ()) == set(base.layers.kinds if base.layers else ())
    assert ("active per token" in printed) == (base.mlp.kind == "moe")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "no size is set; set params, active, flops or memory"),
        (
            "--params 10M --like llama-3",
            "its embedding and head (128,256 tokens) alone need 16.4M parameters at d_model = 64",
        ),
        ("--params 10M --like gemma-2", "its embedding (256,000 tokens) alone need 16.4M parameters at d_model = 64"),
        (
            "--params 1B --like lama-3",
            "--like is 'lama-3', which is neither a family nor a preset; did you mean llama-3?",
        ),
        ("--params 1B --like gpt-4", "has only facts"),
        (
            "--params 1B --like mamba-2",
            "--like is mamba-2, which cannot be scaled; allowed: models that have an MLP and attention",
        ),
        ("--params 1B --active 100M", "--active needs a mixture of experts, but --like is llama-3"),
        ("--params 30B --active 25B --like qwen3", "with the proportions of its experts, the model has 3.3"),
        ("--params 1B model.d_model=512", "model.d_model  is chosen by the proposal; leave it out"),
        (
            "--params 1B model.mlp.kind=none",
            "model.mlp.kind=none: the model cannot be scaled; allowed: models that have",
        ),
        ("--params 1B model.vocab_siz=512", "did you mean vocab_size?"),
        ("--params 0", "--params is '0'; allowed: a whole number, at least 1"),
        ("--params many", "--params is 'many'; allowed: a whole number"),
        ("--memory 16GB --memory 2", "occurs twice"),
        ("--memory lots", "--memory is 'lots'; allowed: "),
        ("--memory 1KiB", "parameters"),
        ("--hardware h1000x8", "unknown hardware 'h1000x8'; did you mean h100?"),
        ("--params 1B --out .", "--out is ., a folder; allowed: a file name"),
    ],
)
def test_refusals(arguments, said, capsys):
    err = run(capsys, *arguments.split(), code=2)
    assert said in err
    assert "Traceback" not in err


def test_a_size_below_every_shape_is_refused_in_python_too():
    with pytest.raises(UserError, match="no shape with the proportions of tiny-llama has 1 parameters"):
        propose("tiny-llama", params=1)
