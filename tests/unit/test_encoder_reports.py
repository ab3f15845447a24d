"""Commands about a model with an encoder name both of its stacks, or refuse it with a message."""

import json

import pytest

from archlab.atlas.inspect import choices
from archlab.atlas.tricks import tricks
from archlab.cli import app
from archlab.config.core.yaml_text import to_yaml
from archlab.config.describe import layer_table
from archlab.config.schema import Config
from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.pricing.budget import budgets, divide
from archlab.pricing.hardware import load_hardware
from archlab.pricing.partition import Parallel
from archlab.pricing.summary import cost
from archlab.report.cost.tables import of_one
from archlab.review.findings import findings
from archlab.review.shape_rule import Case
from archlab.sizing.propose import propose
from archlab.sizing.resize import at_width, resized

ENCODER = "model.encoder={n_layers: 3, mlp.d_ff: 48, cross: {n_kv_heads: 1}}"


def with_encoder(*overrides: str) -> Config:
    return load_config("tiny-llama", ENCODER, "model.position=t5", *overrides)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert app.main([*arguments]) == 0
    return capsys.readouterr().out


def test_the_table_of_layers_names_the_stack():
    rows = [(row["stack"], row["layers"], row["mlp"], row["cross"]) for row in layer_table(with_encoder().model)]
    assert rows == [("encoder", "0-2", "gated silu 48", "-"), ("decoder", "0-5", "gated silu 344", "4/1/32")]
    assert "stack" not in layer_table(load_config("tiny-llama").model)[0]


def test_layers_as_json_name_the_stack(capsys):
    layers = json.loads(printed(capsys, "show", "tiny-llama", ENCODER, "--layers", "--json"))
    assert [layer["stack"] for layer in layers] == ["encoder"] * 3 + ["decoder"] * 6
    assert layers[0]["mlp"]["d_ff"] == 48


def test_a_diff_shows_the_encoder(capsys, tmp_path):
    (tmp_path / "a.yaml").write_text(to_yaml(with_encoder().model_dump(mode="json")))
    found = printed(capsys, "diff", str(tmp_path / "a.yaml"), "tiny-llama")
    assert "model.encoder.n_layers" in found
    assert "model.encoder.mlp.d_ff" in found


def test_the_review_covers_the_encoder_and_cross_attention():
    """Values that the decoder has, too, are not repeated."""
    config = with_encoder(
        "model.d_model=512", "model.attention={n_heads: 8, n_kv_heads: 2, head_dim: 64}",
        "model.encoder={n_layers: 101, mlp.d_ff: 50, attention.head_dim: 36, cross: {head_dim: 300}}",
    )  # fmt: skip
    found = {(finding.field, finding.value, finding.place) for finding in findings(Case(config))}
    assert {
        ("head_dim", 36, "encoder"),
        ("head_dim", 300, "cross-attention"),
        ("d_ff", 50, "encoder"),
        ("n_layers", 101, "encoder"),
    } <= found
    assert not any(place for field, _, place in found if field in ("vocab_size", "d_model"))
    lines = [finding.what for finding in findings(Case(config))]
    assert "n_layers 101 in the encoder (usual: up to 100)" in lines
    alike = load_config("tiny-llama", "model.encoder.n_layers=6")
    assert {finding.what for finding in findings(Case(alike))} == {
        finding.what for finding in findings(Case(load_config("tiny-llama")))
    }


def test_stages_of_a_pipeline_are_refused():
    with pytest.raises(UserError, match="a model with an encoder cannot be divided into pipeline stages"):
        findings(Case(with_encoder(), pipeline=2))


def test_sizes_are_refused():
    raw = with_encoder().model_dump(mode="json")
    with pytest.raises(
        UserError, match=r"mine cannot be scaled; allowed: .*, and an encoder, if any, with as many layers"
    ):
        resized(raw, "mine", 10_000_000)
    with pytest.raises(UserError, match="mine: the model has an encoder; allowed here: models without an encoder"):
        at_width(with_encoder(), "mine", 256)
    with pytest.raises(
        UserError, match=r"the model cannot be scaled; allowed: .*, and an encoder, if any, with as many layers"
    ):
        propose("llama-3-8b", "model.encoder.n_layers=2", params=10**9)


def test_an_inspection_describes_the_encoder():
    found = choices(with_encoder().model)
    assert found["size"].endswith("3 + 6 layers of 128")
    own = "GQA, 4/2 heads of 32; T5; SwiGLU, 48 wide"
    assert found["encoder"] == f"{own}; read by cross-attention: MQA, 4/1 heads of 32"
    assert "encoder of 3 layers" in tricks(with_encoder())
    assert "encoder" not in choices(load_config("tiny-llama").model)


def test_tables_name_the_source_and_fit_80_columns(capsys):
    titles = [table.columns[0] for table in of_one(cost(with_encoder(), context=100, source=40))]
    assert "serving, 100 target + 40 source tokens" in titles
    assert "training, windows of 256 target + 256 source tokens" in titles
    found = printed(capsys, "cost", "tiny-llama", ENCODER, "--source", "40")
    assert "of which 1 x 40 source tokens" in found
    assert max(map(len, found.splitlines())) <= 80


def test_json_names_the_source(capsys):
    found = json.loads(printed(capsys, "cost", "tiny-llama", ENCODER, "--source", "40", "--context", "100", "--json"))
    assert (found["source"], found["context"], found["training_source"]) == (40, 100, 256)
    assert found["source_kv_bytes"] == 40 * 6 * 2 * 32 * 2
    assert {"encoder", "cross"} <= {*found["parameters"]} & {*found["forward_flops"]}


def test_the_page_names_the_source(capsys, tmp_path):
    page = tmp_path / "page.html"
    printed(capsys, "cost", "tiny-llama", ENCODER, "--source", "40", "--html", str(page))
    assert "reads a source text of 40 tokens for each sequence" in page.read_text()
    assert "In charts over the context" not in page.read_text()
    printed(capsys, "cost", "tiny-llama", ENCODER, "--html", str(page))
    assert "In charts over the context, source texts are as long as the context" in page.read_text()


def test_a_source_without_an_encoder_is_refused(capsys):
    assert app.main(["cost", "tiny-llama", "--source", "40"]) == 2
    assert "source is 40, but the model has no encoder; leave it out" in capsys.readouterr().err


def test_plans_name_the_ways_that_are_refused():
    plans, refused = divide(with_encoder(), [Parallel(shard=2), Parallel(tensor=2)], load_hardware("h100"))
    assert list(plans) == [Parallel(shard=2)]
    assert refused == [
        "tensor=2: a model with an encoder is planned only with replicate and shard; allowed: tensor=1, pipeline=1"
    ]
    assert budgets(with_encoder()) == []
    assert [budget.is_rule for budget in budgets(with_encoder("train.tokens=1M"))] == [False]
