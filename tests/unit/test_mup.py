"""muP: its rules for every parameter, compared with table 8 of the paper; no change at the base width; and the
coordinate check."""

import json
import math

import pytest
import torch

from archlab.cli import app
from archlab.config.identity import resolved
from archlab.config.io import build_config
from archlab.config.layers import layer_configs
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.exchange.save import save_pretrained
from archlab.measuring.coordinates import coordinate_check
from archlab.model.decoder import Decoder
from archlab.model.roles import roles_of
from archlab.sizing.resize import at_width
from archlab.training import optim
from archlab.training.optim import make_optimizer
from tiny import config

WIDE = ("model.d_model=128", "model.attention={n_heads: 4, n_kv_heads: 2, head_dim: 32}", "model.mlp.d_ff=256")
MUP = ("model.mup={base_width: 32, base_head_dim: 8}",)


def rates(asked):
    """Return (name, name of the role) -> (multiplier of the rate, rate times decay, initial standard deviation)."""
    model = Decoder(asked.model)
    groups = make_optimizer(model, resolve_train(asked)).param_groups
    of = {p: (g["lr_multiplier"], g["lr_multiplier"] * g["weight_decay"]) for g in groups for p in g["params"]}
    return {(n, role.name): (*of[p], p.std().item()) for n, p, role, _ in roles_of(model)}


def test_every_role_has_its_row_of_table_8():
    """Compare a model four times as wide as the base (m = 4) with the base. The values are computed by hand.

    Input weights and biases have standard deviation 1 and rate 1. Hidden weights have 1/sqrt(m) and 1/m. Output weights
    have 1 and 1, and a multiplier of 1/m. Scores are divided by the width of a head: four times as wide, a quarter.
    """
    base, wide = rates(config("train.weight_decay=0.1")), rates(config("train.weight_decay=0.1", *WIDE, *MUP))
    rows = {"embedding": (1, 1), "head": (1, 1), "input": (1 / 2, 1 / 4), "output": (1 / 2, 1 / 4)}
    assert {role for _, role in wide} == {*rows, "constant"}
    for (name, role), (rate, decayed, deviation) in wide.items():
        was_rate, was_decayed, was_deviation = base[name, role]
        deviates, learns = rows.get(role, (0, 1))
        assert rate == pytest.approx(learns * was_rate), name
        assert decayed == pytest.approx(was_decayed), name
        if role != "constant":
            assert deviation == pytest.approx(deviates * was_deviation, rel=0.15), (
                name
            )  # estimated from 32 x 32 numbers or more
    model = config(*WIDE, *MUP).model
    assert Decoder(model).head.config.scale == 1 / 4
    assert Decoder(config(*WIDE, *MUP, "model.embedding.scale=sqrt_d_model").model).embedding.scale == math.sqrt(32)
    assert layer_configs(model)[0].multi_head.scale == pytest.approx(math.sqrt(8) / 32)


def test_given_deviations_are_those_of_the_base():
    given = ("model.init={embedding: 0.1, input: 0.2, output: 0.3, head: 0.4}",)
    found = {role: deviation for (_, role), (_, _, deviation) in rates(config(*WIDE, *MUP, *given)).items()}
    expected = {"embedding": 0.1, "input": 0.1, "output": 0.15, "head": 0.4}
    assert {role: found[role] for role in expected} == pytest.approx(expected, rel=0.05)


def test_at_its_base_nothing_differs():
    plain, based = (Decoder(config(*more).model) for more in ((), MUP))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), based.parameters(), strict=True))
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(plain(tokens), based(tokens))
    assert {r[:2] for r in rates(config()).values()} == {r[:2] for r in rates(config(*MUP)).values()}


def test_muons_matrices_need_no_other_rate():
    muon = ("train.optimizer={kind: muon, scale: spectral}",)
    assert {rate for rate, _, _ in rates(config(*WIDE, *MUP, *muon)).values()} == {1.0}


def test_what_it_derives_is_written_out_and_read_again():
    asked = config(*WIDE, *MUP)
    again = build_config(resolved(asked))
    assert resolved(again) == resolved(asked)
    assert again.model.head.scale == 0.25


def test_mup_is_exported_only_if_the_family_has_its_factors(tmp_path):
    wide = Decoder(config(*WIDE, *MUP, "model.norm.eps=1e-6").model)
    save_pretrained(wide, tmp_path / "granite")
    hf = json.loads((tmp_path / "granite" / "config.json").read_text())
    assert (hf["model_type"], hf["logits_scaling"]) == ("granite", 4.0)
    with pytest.raises(UserError, match="no known family can express this model exactly"):
        save_pretrained(
            Decoder(config(*WIDE, *MUP, "model.mlp={kind: plain, activation: relu}").model), tmp_path / "no"
        )


# --- the coordinate check ---------------------------------------------------------------------------------------------

SMALL = ("model.vocab_size=64", "train.lr=3e-3", "model.attention={n_heads: 4, n_kv_heads: 4, head_dim: 8}")


def slopes(*overrides):
    found = coordinate_check(config(*SMALL, *overrides), (32, 128), steps=4, context=32)
    return {place.name: math.nan if place.slope is None else place.slope for place in found.places}


@pytest.mark.slow
def test_updates_move_activations_alike_at_every_width_under_mup_alone():
    """Tensor Programs V: without muP, logits change in proportion to the width, in theory with slope 1."""
    standard, mup = slopes(), slopes(*MUP)
    assert list(mup) == ["embedding", "layer 1", "layer 2", "logits"]
    assert all(abs(slope) < 0.12 for slope in mup.values()), mup
    assert standard["logits"] > 0.8
    assert all(standard[name] > 0.3 for name in ("layer 1", "layer 2"))


@pytest.mark.slow
def test_the_check_sees_that_the_rate_does_not_fall(monkeypatch):
    """muP's initial values and multipliers, with the same rate for all parameters."""
    treatment = optim._treatment
    monkeypatch.setattr(optim, "_treatment", lambda role, _, train: treatment(role, config().model, train))
    assert slopes(*MUP)["layer 2"] > 0.3


def test_a_width_has_heads_and_mlps_in_proportion():
    wider = at_width(config("model.layers={a: {mlp.d_ff: 32}, b: {}, pattern: [a, b]}"), "tiny", 96).model
    assert (wider.d_model, wider.multi_head.n_heads, wider.multi_head.n_kv_heads, wider.dense.d_ff) == (96, 12, 6, 192)
    assert [layer.dense.d_ff for layer in layer_configs(wider)] == [96, 192]
    with pytest.raises(
        UserError, match=r"tiny: model\.attention\.n_kv_heads: 2 at d_model 32 would be 1\.5 at 24; allowed"
    ):
        at_width(config(), "tiny", 24)
    with pytest.raises(UserError, match=r"tiny: model\.mixer\.kind: mamba2 has widths that do not depend on d_model"):
        at_width(config("model.mixer.kind=mamba2"), "tiny", 64)


@pytest.mark.slow
def test_the_command_prints_it_and_writes_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    how = [
        "tiny-llama",
        "model.vocab_size=64",
        "model.n_layers=1",
        "--widths",
        "64,128",
        "--steps",
        "1",
        "--context",
        "64",
    ]
    assert app.main(["probe", *how]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:2] == ["layer", "1"] for line in lines)
    assert app.main(["probe", *how, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["widths"], found["steps"], found["seeds"]) == ([64, 128], 1, [0, 1, 2])
    assert app.main(["probe", *how, "--html", "widths.html"]) == 0
    assert 'id="chart-config-0"' in (tmp_path / "widths.html").read_text()
    capsys.readouterr()
    for wrong, message in (
        (["--widths", "64"], "widths: 64; allowed: two or more"),
        (["--steps", "2"], "--steps belongs to the coordinate check; add --widths"),
    ):
        assert app.main(["probe", "tiny-llama", *wrong]) == 2
        assert message in capsys.readouterr().err
