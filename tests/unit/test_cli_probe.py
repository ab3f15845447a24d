"""Output and pages of `archlab probe`."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import archlab
from archlab.cli import app
from archlab.config.components.position import Rope
from archlab.measuring import probe as probe_module
from archlab.measuring.probe import rope_products
from archlab.report.probe.tables import over_depth
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.measures import CROSS, ENCODER, OF_LAYERS, OF_MODEL
from archlab.training.train import train
from tiny import config, write_text

SMALL = ("model.d_model=32", "model.n_layers=3", "model.vocab_size=300", "model.attention={n_heads: 4, n_kv_heads: 2}")


@pytest.fixture(autouse=True)
def _here(tmp_path_factory, tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.chdir(tmp_path)


def printed(capsys, *arguments):
    assert app.main(["probe", *arguments]) == 0
    return capsys.readouterr().out


def probed(capsys, *arguments):
    return json.loads(printed(capsys, "tiny-llama", *SMALL, *arguments, "--json"))


def drawn(spec):
    """Return the points of a chart."""
    data = next(part["data"] for part in (spec, *reversed(spec["layer"])) if "data" in part)
    return spec["datasets"][data["name"]] if "name" in data else data["values"]


def test_json_has_the_tables_numbers(capsys):
    found = probed(capsys)
    assert found["config"] == "tiny-llama"
    assert (found["windows"], found["context"], found["vocab_size"]) == (2, 256, 300)
    assert [len(found[name]) for name in ("gradient", "entropy", "dead_units")] == [3, 3, 3]
    assert found["uniform_loss"] == pytest.approx(math.log(300))
    assert abs(found["loss"] - found["uniform_loss"]) < 1  # a new model only guesses
    text = printed(capsys, "tiny-llama", *SMALL)
    row = next(line for line in text.splitlines() if "RMS of the stream" in line)
    assert [f"{found['stream_rms'][i]:.3g}" for i in (0, 2)] == re.findall(r"[\d.]+", row)


def test_a_seed_decides_all_of_it(capsys):
    assert probed(capsys) == probed(capsys)
    assert probed(capsys, "train.seed=1")["loss"] != probed(capsys)["loss"]


def test_the_cap_on_the_logits_is_seen(capsys):
    found = probed(capsys, "model.head.softcap=0.5")
    assert found["log_z"] < found["log_z_uncapped"]
    assert "log Z before the cap" in printed(capsys, "tiny-llama", *SMALL, "model.head.softcap=0.5")


@pytest.mark.parametrize("more", [[], ["gpt-1-117m"], ["gpt-1-117m", "gpt-2"]])
def test_tables_fit_into_80_columns(more, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, "tiny-llama", *more, *SMALL[:3], "model.attention.n_heads=4")
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for name in ("tiny-llama", *more, "gradient of parameters", "RoPE", "log Z, mean"))
    assert len(re.findall(r"[▁-█]{3} ", text)) == 9 * (1 + len(more))


def test_one_measure_has_one_scale():
    table = over_depth({"a": {"gradient": [1.0, 2.0, None]}, "b": {"gradient": [4.0, 8.0, 16.0]}})
    assert [row[1:] for row in table.rows] == [("", "", ""), ("1", "▁▃·", "2"), ("4", "▅▇█", "16")]
    flat = over_depth({"a": {"gradient": [1.0, 1.01, 1.0]}})
    assert set(flat.rows[0][2]) <= set("▄▅")  # noise must not look like a slope
    deep = over_depth({"a": {"drift": [float(i) for i in range(1, 101)]}})
    assert (len(deep.rows[0][2]), deep.rows[0][1], deep.rows[0][3]) == (24, "1", "100")


def test_several_share_the_shortest_window(capsys):
    Path("short.yaml").write_text("base: tiny-llama\ntrain: {seq_len: 64}\n")
    found = json.loads(printed(capsys, "tiny-llama", "short.yaml", *SMALL, "--json"))
    assert [(one["config"], one["context"]) for one in found] == [("tiny-llama", 64), ("short.yaml", 64)]
    assert found[0]["gradient"] == found[1]["gradient"]
    assert probed(capsys, "--context", "32")["windows"] == 16


@pytest.mark.slow
def test_the_page_holds_every_picture_and_loads_nothing(capsys, tmp_path):
    page = tmp_path / "new" / "probe.html"
    out = printed(capsys, "tiny-llama", "gpt-2", *SMALL[:3], "model.attention.n_heads=4", "--html", str(page))
    assert out.strip() == str(page)
    text = page.read_text()
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', text)[1])
    assert {"gradient", "stream_rms", "drift", "entropy_share", "rope"} <= set(specs)
    assert all(f'id="chart-{name}"' in text for name in specs)
    points = drawn(specs["gradient"])
    assert [(p["config"], p["x"]) for p in points] == [(n, x) for n in ("tiny-llama", "gpt-2") for x in (1, 2, 3)]
    assert not re.findall(r"<script[^>]+src=", text)
    assert not re.findall(r"(?:src|href)=", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))


@pytest.mark.slow
def test_a_runs_probes_stand_beside_its_start(capsys, tmp_path):
    run = config("train.probe_every=5", data=write_text(tmp_path))
    train(run, tmp_path / "run", Callback())
    found = json.loads(printed(capsys, "run", "--json"))
    assert [row["step"] for row in found["training"]] == [0, 5, 10]
    assert found["training"][0]["stream_rms"] == pytest.approx(found["stream_rms"], rel=0.2)  # measured on other tokens
    text = printed(capsys, "run")
    assert "run, step 10" in text
    assert "update to weights" in text
    printed(capsys, "run", "--html", "run.html")
    page = (tmp_path / "run.html").read_text()
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page)[1])
    points = drawn(specs["run-0-update_ratio"])
    assert {(p["layer"], p["x"]) for p in points} == {(layer, step) for layer in (1, 2) for step in (5, 10)}
    assert all(f'id="chart-{name}"' in page for name in specs)


def test_a_model_too_large_for_the_memory_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(Device, "memory", property(lambda _: 16 * 2**30))
    monkeypatch.setattr(probe_module, "Decoder", None)  # the model is not built
    assert app.main(["probe", "tiny-llama", "llama-3-8b"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"llama-3-8b: with 8\.03B parameters, a probe needs [67]\d\.?\d* GiB for float32 weights", err)
    assert "has 16 GiB; probe fewer layers, such as model.n_layers=" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny-llama", "--html", "a", "--json"], "--json and --html cannot be combined"),
        (["gpt-2", *SMALL[:3], "model.attention.n_heads=4", "--context", "4096"], "learned positions end"),
        (["tiny-llama", "model.attention={n_heads: 4, visibility: two_sided}"], "allowed: causal"),
    ],
)
def test_what_is_refused(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(probe_module, "LONGEST_WINDOW", 64)
    assert app.main(["probe", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_ropes_products_are_the_mean_cosine_of_the_angles(fraction, pairing):
    found = rope_products("layer", Rope(theta=500.0, fraction=fraction, pairing=pairing), 32, 300, seed=0)
    assert (found.distances[:5], found.distances[-1]) == ([0, 1, 2, 3, 4], 256)
    rotating = int(32 * fraction)
    frequencies = 500.0 ** (-np.arange(0, rotating, 2) / rotating)
    cosines = np.cos(np.array(found.distances)[:, None] * frequencies).sum(1) * 2 + 32 - rotating
    np.testing.assert_allclose(found.products, cosines / 32, atol=0.03)
    assert found.products[0] == pytest.approx(1)


def test_every_number_is_explained(capsys):
    """docs/probes.md explains every number by its name in JSON, and what the prefix of a name means."""
    text = (Path(archlab.__file__).parents[2] / "docs" / "probes.md").read_text()
    measures = {name.rpartition(".")[2] for name in (*OF_LAYERS, *OF_MODEL)}
    assert {name for name in measures if f"`{name}`" not in text} == {"uniform_loss"}
    assert all(f"`{prefix}" in text for prefix in (ENCODER, CROSS))


def test_the_device_is_the_configs(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert app.main(["probe", "tiny-llama", *SMALL, "train.device=cuda"]) == 2
    assert "train.device: cuda, but torch finds no CUDA device here" in capsys.readouterr().err
