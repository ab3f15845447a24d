"""Overrides merged over files: tagged unions switch, typos survive to be reported, nothing is lost silently."""

import pytest

from archlab.config.components.dropout import Dropout
from archlab.config.core.base import memory_size
from archlab.config.core.merge import expand, merge
from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config, read_config

LAYERNORM = {"model": {"norm": {"kind": "layernorm", "eps": 1e-6, "bias": False, "placement": "double"}}}


def test_dotted_keys_nest_at_every_depth():
    assert expand({"a.b": 1, "a": {"c.d": 2}}) == {"a": {"b": 1, "c": {"d": 2}}}


def test_a_key_given_both_ways_is_an_error():
    with pytest.raises(UserError, match=r"a\.b is given twice"):
        expand({"a": {"b": 1}, "a.b": 2})


def test_switching_a_union_drops_only_what_the_new_variant_lacks():
    merged = overlay(LAYERNORM, {"model.norm.kind": "rmsnorm"}, Config)
    assert merged["model"]["norm"] == {"kind": "rmsnorm", "eps": 1e-6, "placement": "double"}


def test_switching_a_union_keeps_typos_for_the_report():
    raw = {"model": {"norm": {"kind": "layernorm", "bias": False, "bais": True}}}
    assert overlay(raw, {"model.norm.kind": "rmsnorm"}, Config)["model"]["norm"] == {
        "kind": "rmsnorm",
        "bais": True,
    }


def test_naming_the_same_kind_again_drops_nothing():
    assert overlay(LAYERNORM, {"model.norm.kind": "layernorm"}, Config) == LAYERNORM


def test_a_union_without_its_kind_is_the_default_one():
    assert merge({}, {"model": {"norm": {"eps": 1e-3}}}, Config) == {
        "model": {"norm": {"kind": "rmsnorm", "eps": 1e-3}}
    }


@pytest.mark.parametrize("in_file", [True, False])
def test_the_default_kind_may_be_left_out_in_files_and_overrides(in_file):
    raw = {"model": {"vocab_size": 256, "d_model": 64, "n_layers": 2, "attention.n_heads": 4}}
    change = {"model": {"norm": {"eps": 1e-3}}}
    raw = expand(raw)
    config = build_config(overlay(raw, change, Config)) if in_file else build_config(raw, ["model.norm.eps=1e-3"])
    assert (config.model.norm.kind, config.model.norm.eps) == ("rmsnorm", 1e-3)


def test_switching_the_default_kind_of_a_file_that_does_not_name_it():
    raw = expand({"model": {"vocab_size": 256, "d_model": 64, "n_layers": 2, "attention.n_heads": 4}})
    raw["model"]["position"] = {"theta": 5e5, "fraction": 0.5}
    assert build_config(raw, ["model.position.kind=none"]).model.position.kind == "none"


def test_plain_over_a_gated_preset():
    config = load_config("tiny-llama", "model.mlp.kind=plain", "model.mlp.activation=relu")
    assert (config.model.mlp.kind, config.model.mlp.activation) == ("plain", "relu")


def test_an_override_inside_a_layer_kind_leaves_the_rest_of_it():
    layers = {"a": {"attention.window": 8, "attention.n_kv_heads": 2, "position.theta": 7}, "pattern": ["a"]}
    raw = overlay(read_config("tiny-llama"), {"model.layers": layers}, Config)
    found = build_config(raw, ["model.layers.a.attention.window=4"]).model.layers.kinds["a"]
    assert found == {"attention": {"window": 4, "n_kv_heads": 2}, "position": {"theta": 7}}
    found = build_config(raw, ["model.layers.a.position.kind=none"]).model.layers.kinds["a"]
    assert found["position"] == {"kind": "none"}


def test_a_single_value_is_not_opened_up():
    with pytest.raises(UserError, match=r"model\.mlp\.d_ff is a single value"):
        load_config("tiny-llama", "model.mlp.d_ff.wide=1")


def test_a_short_form_is_written_out_where_one_of_its_fields_changes(tmp_path):
    (tmp_path / "base.yaml").write_text("base: tiny-llama\nmodel: {dropout: 0.1}\n")
    changed = load_config(tmp_path / "base.yaml", "model.dropout.embedding=0").model.dropout
    assert changed == Dropout(embedding=0, attention=0.1, branch=0.1)
    with pytest.raises(UserError, match=r"model\.dropout\.embeding +unknown; did you mean embedding"):
        load_config(tmp_path / "base.yaml", "model.dropout.embeding=0")
    kinds = {"model.layers": {"a": {"dropout": 0.1}, "pattern": ["a"]}}
    raw = overlay(read_config("tiny-llama"), kinds, Config)
    with pytest.raises(UserError, match=r"dropout is a single value \(0\.1\) without fields"):
        build_config(raw, ["model.layers.a.dropout.branch=0"])


def test_override_values_are_yaml_and_the_last_one_holds():
    assert parse_overrides(["a=1", "a=2", "b.c=1e-3", "d=null", "e=[1, x]", "f=a=b"]) == (
        {"a": 2, "b.c": 1e-3, "d": None, "e": [1, "x"], "f": "a=b"},
        [],
    )


@pytest.mark.parametrize("text", ["model.norm.kind", "=1", "", "model..norm=3", "model.="])
def test_an_override_needs_key_and_value(text):
    with pytest.raises(UserError, match="expected key=value"):
        load_config("tiny-llama", text)


def test_an_override_that_cannot_be_read_hides_no_other_problem():
    with pytest.raises(UserError, match="3 problems") as refused:
        load_config("tiny-llama", "model.norm", "model.d_model=[", "model.n_layers=0", "train.lr=1e-3")
    assert "not valid YAML" in str(refused.value)
    assert "model.n_layers" in str(refused.value)


def test_counts_and_shares_are_read_as_people_write_them():
    train = load_config("tiny-llama", "train.tokens=4M", "train.batch_tokens=16384", "train.warmup=10%").train
    assert (train.tokens, train.batch_tokens, train.warmup) == (4_000_000, 16384, 0.1)
    for text, number in (
        ("4.1M", 4_100_000),
        ("2.01M", 2_010_000),
        ("16.1K", 16_100),
        ("0.3G", 300_000_000),
        ("16Ki", 2**14),
        ("1.5mI", 3 * 2**19),
        ("1Gi", 2**30),
        ("1ti", 2**40),
    ):
        assert load_config("tiny-llama", f"train.tokens={text}").train.tokens == number


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("81559 MiB", 81559 * 2**20), ("95.74GiB", int(95.74 * 2**30)),
        (" 1KiB ", 1024), ("16G", 16 * 10**9), ("1.5TiB", 3 * 2**39), ("2PB", 2 * 10**15), ("8BB", "8BB"), (12, 12), ("80gb", "80gb"), ("1.2.3GB", "1.2.3GB"), ("GB", "GB"),
    ],
)  # fmt: skip
def test_sizes_of_memory(text, size):
    """A text that is not a size passes through unchanged, and validation refuses it."""
    assert memory_size(text) == size


def test_one_number_sets_every_dropout():
    assert set(load_config("tiny-llama", "model.dropout=0.2").model.dropout.model_dump().values()) == {0.2}
