"""Probes of runs in a study's summary and on its page."""

import json
import re

import numpy as np
import pytest

import sample_study
from archlab.report.study.curves import depth_probes, time_probes
from archlab.report.study.page import render
from archlab.study.details import probed_arm
from archlab.study.outcomes.kinds import OF_EVERY_LAYER, Probe
from archlab.study.outcomes.log import from_log
from archlab.study.runs import Ended
from archlab.training.callback import Callback
from archlab.training.measures import OF_LAYERS, measured
from archlab.training.probes import training_probes
from archlab.training.run_folder import RunFolder
from archlab.training.summary import RunSummary
from archlab.training.train import train
from tiny import config, write_text


def ended(probes, status="finished"):
    """Return a run with 10 tokens per step and these probes by step."""
    summary = RunSummary(
        status=status, steps=10, tokens=100, bits_per_byte=2.0, loss=4.0, train_loss=3.0, tokens_per_second=1e3,
        mfu=0.1, parameters=9, device="a CPU", dtype="float32",
    )  # fmt: skip
    updates = [{"step": step, "tokens": 10 * step, "lr": 1e-3} for step in probes if step]
    return Ended(summary, [*updates, *({"step": step, "probes": found} for step, found in probes.items())], {}, [], {})


@pytest.mark.slow
def test_a_run_of_its_own_is_kept_as_its_folder_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path / "cache"))
    settings = config("train.probe_every=4", data=write_text(tmp_path))
    train(settings, tmp_path / "run", Callback())
    folder = RunFolder(tmp_path / "run")
    found = probed_arm({0: Ended(folder.summary(), folder.metrics(), {}, [], {})})
    rows = training_probes(tmp_path / "run")
    assert found.tokens == [64 * row["step"] for row in rows] == [0, 256, 512]
    assert found.at_end.keys() == {name for name in rows[-1] if name in OF_LAYERS and OF_LAYERS[name].in_studies}
    for name, layers in found.at_end.items():
        assert layers == pytest.approx(rows[-1][name], rel=5e-4)
        reduced = max if OF_LAYERS[name].takes_largest else np.mean
        expected = [reduced(row[name]) if name in row else None for row in rows]
        assert [x is None for x in found.over_time[name]] == [x is None for x in expected]
        assert found.over_time[name][1:] == pytest.approx(expected[1:], rel=5e-4)
    assert found.over_time["log_z"] == pytest.approx([row["log_z"] for row in rows], rel=5e-4)
    assert found.over_time["update_ratio"][0] is None, "the first probe has no update before it"
    digits = [re.sub(r"e.*|[-.]", "", repr(x)).strip("0") for x in found.at_end["gradient"]]
    assert max(map(len, digits)) <= 4


def test_a_point_is_the_mean_over_the_seeds_that_finished():
    runs = {
        0: ended({0: {"gradient": [1.0, 3.0], "log_z": 8.0}, 5: {"gradient": [2.0, 4.0], "largest_score": [1.0, 9.0]}}),
        1: ended(
            {0: {"gradient": [3.0, 5.0], "log_z": 6.0}, 5: {"gradient": [4.0, None], "largest_score": [3.0, 5.0]}}
        ),
        2: ended({0: {"gradient": [99.0, 99.0], "log_z": 99.0}}, "diverged"),
    }
    found = probed_arm(runs)
    assert (found.seeds, found.tokens) == ([0, 1], [0, 50])
    assert found.at_end == {"gradient": [3.0, None], "largest_score": [2.0, 7.0]}
    assert found.over_time == {"gradient": [3.0, 3.0], "largest_score": [None, 7.0], "log_z": [7.0, None]}
    assert probed_arm({2: runs[2]}).at_end == {"gradient": [99.0, 99.0]}, "where none finished, what diverged"


def test_only_probes_that_all_seeds_have_are_kept_and_few_of_many():
    every = {step: {"gradient": [float(step)]} for step in range(0, 1001, 5)}
    some = {step: found for step, found in every.items() if step % 2 == 0}
    found = probed_arm({0: ended(every), 1: ended(some)})
    assert len(found.tokens) == 50
    assert (found.tokens[0], found.tokens[-1]) == (0, 10_000)
    assert all(tokens % 100 == 0 for tokens in found.tokens)
    assert found.over_time["gradient"] == [tokens / 10 for tokens in found.tokens]
    assert probed_arm({0: ended({})}) is None
    assert probed_arm({0: ended({0: {"gradient": [1.0]}}), 1: ended({5: {"gradient": [1.0]}})}) is None


def test_what_is_kept_of_every_probe():
    attention = ("largest_score", "entropy", "first_token", "learned_sink")
    one_stack = ("gradient", "stream_rms", "update_ratio", *attention, "dead_units", "largest_load")
    cross = tuple(f"cross_attention.{name}" for name in attention)
    assert (*one_stack, *cross, *(f"encoder.{name}" for name in one_stack)) == tuple(
        name for name, measure in OF_LAYERS.items() if measure.in_studies
    )
    assert tuple(name for name, measure in OF_LAYERS.items() if measure.takes_largest) == (
        "largest_score", "largest_load", "cross_attention.largest_score", "encoder.largest_score", "encoder.largest_load",
    )  # fmt: skip


def test_what_a_study_can_compare_of_probes():
    names = Probe.model_json_schema()["properties"]["of"]["enum"]
    every_layer = ["gradient", "stream_gradient", "stream_rms", "drift", "update_ratio"]
    attention = ["largest_score", "entropy", "entropy_share", "first_token", "learned_sink"]
    one_stack = [*every_layer, *attention, "dead_units", "largest_load", "dead_experts"]
    assert names == [
        *one_stack,
        *(f"cross_attention.{name}" for name in attention),
        *(f"encoder.{name}" for name in one_stack),
        *("log_z", "log_z_rms", "embedding_rms", "encoder.embedding_rms"),
    ]
    assert (*every_layer, *(f"encoder.{name}" for name in every_layer)) == OF_EVERY_LAYER


def test_an_outcome_is_about_the_layers_of_one_stack():
    def value(of, **how):
        two_stacks = {
            "gradient": [2.0, 6.0],
            "encoder.gradient": [1.0, 2.0, 3.0],
            "cross_attention.entropy": [0.5, None],
            "encoder.embedding_rms": 0.25,
        }
        return from_log(Probe(of=of, **how), ended({0: two_stacks}))

    assert (value("gradient"), value("encoder.gradient")) == (4.0, 2.0)
    assert (value("gradient", layers="last_over_first"), value("encoder.gradient", layers="last_over_first")) == (3, 3)
    assert value("cross_attention.entropy", layers="smallest") == 0.5
    assert value("encoder.embedding_rms") == 0.25
    assert value("cross_attention.first_token") is None


@pytest.mark.parametrize(
    ("outcome", "title"),
    [
        ({"of": "gradient"}, "gradient (mean of the layers)"),
        ({"of": "encoder.gradient"}, "encoder: gradient (mean of the layers)"),
        ({"of": "cross_attention.first_token"}, "cross-attention: attention on the first token (mean of the layers)"),
        ({"of": "encoder.largest_score", "layers": "largest"}, "encoder: largest score in any layer"),
        ({"of": "encoder.embedding_rms", "at": "start"}, "encoder: embedding rms at the start of training"),
    ],
)
def test_the_title_of_an_outcome_names_the_stack(outcome, title):
    assert Probe(**outcome).title == title


def test_titles_say_decoder_if_every_model_has_an_encoder():
    alone, both = {"gradient": [1.0]}, {"gradient": [1.0], "encoder.gradient": [1.0, 2.0]}

    def titles(*rows):
        return [measure.title for measure in measured(rows).values()]

    assert titles(both, {}) == ["decoder: gradient of parameters", "encoder: gradient of parameters"]
    assert titles(alone, both) == ["gradient of parameters", "encoder: gradient of parameters"]
    assert titles(alone) == ["gradient of parameters"]


@pytest.mark.slow
def test_the_page_draws_what_was_recorded_and_nothing_else():
    study = sample_study.pair()
    assert depth_probes(study) == time_probes(study) == []
    kept = probed_arm({0: ended({0: {"gradient": [1.0, 2.0], "encoder.gradient": [3.0], "log_z": 7.0}})})
    study = study.model_copy(update={"arms": [study.arms[0], study.arms[1].model_copy(update={"probes": kept})]})
    page = render(study)
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.DOTALL)[1])
    drawn = {name: spec for name, spec in specs.items() if name.startswith(("depth-", "time-"))}
    of_encoder = {"depth-encoder.gradient", "time-encoder.gradient"}
    assert drawn.keys() == {"depth-gradient", "time-gradient", "time-log_z", *of_encoder}
    assert (
        page.count("<b>Decoder: gradient of parameters</b>")
        == page.count("<b>Encoder: gradient of parameters</b>")
        == 2
    )
    (points,) = drawn["depth-gradient"]["datasets"].values()
    assert [(point["config"], point["x"], point["y"]) for point in points] == [("GEGLU", 1, 1.0), ("GEGLU", 2, 2.0)]
    colors = drawn["depth-gradient"]["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert colors == ["SwiGLU", "GEGLU"], "an arm has its usual color"
    assert all(f'id="chart-{name}"' in page for name in drawn)
