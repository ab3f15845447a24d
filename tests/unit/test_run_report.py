"""`archlab report`: the status of runs, the charts of their page, and reading a run while it is written."""

import dataclasses
import fcntl
import json
import re
from itertools import count

import numpy as np
import pytest

from archlab import Decoder
from archlab.cli import pages
from archlab.cli.app import main
from archlab.errors import UserError
from archlab.report.run import page as run_page
from archlab.report.run.curves import held_out, of_updates
from archlab.report.run.watched import watch
from archlab.training.run_folder import RunFolder
from sample_run import STEP, STEPS, begun, evaluation, loss, update


def rows_of(chart, layer):
    return chart["datasets"][chart["layer"][layer]["data"]["name"]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    first = begun(home / "first", steps=STEPS, ended="finished", spikes=(350,))
    return watch([first, begun(home / "second", "train.lr=5e-4", steps=300)])


@pytest.fixture(scope="module")
def charts(pair):
    """Charts as Vega-Lite, validated by altair."""
    return {drawn.field: chart.to_dict() for drawn, chart in of_updates(pair)}


@pytest.fixture(scope="module")
def page(pair):
    return run_page.render(pair)


def test_how_a_run_stands(tmp_path):
    runs = [begun(tmp_path / "new", steps=0)]
    runs += [begun(tmp_path / name, ended=name) for name in ("finished", "diverged")]
    runs.append(begun(tmp_path / "stopped"))
    assert [run.status for run in watch(runs)] == ["not begun", "finished", "diverged", "stopped"]
    with (tmp_path / "stopped" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run,) = watch([tmp_path / "stopped"])
    assert run.status == "training"
    assert (run.steps, run.held_out, run.spikes) == (300, 4 - 300 / STEPS, [])
    assert run.tokens_per_second == 1000.5
    assert run.seconds_left == pytest.approx(200 * STEP / 1000.5)


def test_the_page_has_units_and_the_environment_in_words(pair, page):
    assert '<th scope="col">held out, bits per byte</th>' in page
    assert '<th scope="col">loss, nats per token</th>' in page
    (run,) = pair[:1]
    nested = dataclasses.replace(run, environment={"attention": {"products": 6}})
    assert '>attention.products</th><td class="fields" data-label="first">6</td>' in run_page.render([nested])


def test_the_page_begins_with_what_was_trained_and_how_well(pair, page, tmp_path):
    assert "<h1>2 runs: first, second</h1>" in page
    assert "<b>first</b>: 3.000 bits per byte on held-out data after 32K of 32K training tokens (finished)." in page
    facts = dict(run_page.facts(pair))
    assert "highest learning rate" not in facts, "the runs differ in it"
    assert dict(run_page.facts(pair[:1]))["highest learning rate"] == "0.001"
    assert facts["tokens per update"] == f"{STEP}"
    (new,) = watch([begun(tmp_path / "new", steps=0)])
    assert run_page.answer(new) == "not begun after 0 of 32K training tokens."
    parameters = sum(p.numel() for p in Decoder(new.config.model).parameters())
    model = new.config.model
    config = f"{model.n_layers} layers of {model.d_model}, {parameters / 1000:.3g}K parameters"
    assert run_page.title([new]) == f"new: {config}"
    assert run_page.title(pair[:1]) == f"first: {config}, 3.000 bits per byte"


def test_asking_who_trains_keeps_nobody_from_it(tmp_path):
    """A training waits for the short lock of a status check, but not for the lock of another training."""
    folder = RunFolder(begun(tmp_path / "run"))
    with folder.locked():
        assert folder.is_locked()
    assert not folder.is_locked()
    with (folder.path / ".lock").open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        tries, original = count(), fcntl.flock

        def flock(file, how):
            if next(tries) == 1:
                original(asking, fcntl.LOCK_UN)
            return original(file, how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fcntl, "flock", flock)
            with folder.locked():
                pass
    assert next(tries) == 2


def test_a_line_that_is_being_written_is_left_out_until_it_is_whole(tmp_path):
    path = begun(tmp_path / "run", steps=3)
    line = json.dumps(update(4)) + "\n"
    with (path / "metrics.jsonl").open("a") as file:
        for cut in (0, 1, 20, len(line) - 1):
            file.write(line[:cut])
            file.flush()
            assert watch([path])[0].steps == 3
            file.truncate(file.seek(0, 2) - cut)
        file.write(line)
    assert watch([path])[0].steps == 4


@pytest.mark.slow
def test_a_line_of_a_picture_is_the_mean_of_parts_in_their_band(charts):
    assert list(charts) == ["loss", "grad_norm", "lr", "tokens_per_second"]
    rows = [row for row in rows_of(charts["loss"], 0) if row["arm"] == "first"]
    values = [50.0 if step == 350 else loss(step) for step in range(1, STEPS + 1)]
    parts = np.split(np.array(values), np.linspace(0, STEPS, len(rows) + 1).astype(int)[1:-1])
    assert len(rows) == 400
    for how, name in ((np.mean, "mean"), (np.min, "low"), (np.max, "high")):
        np.testing.assert_allclose([row[name] for row in rows], [how(part) for part in parts], rtol=1e-3)
    assert rows[-1]["tokens"] == STEPS * STEP


def test_spikes_are_marked_where_they_were(charts):
    (mark,) = rows_of(charts["loss"], -1)
    assert (mark["arm"], mark["tokens"], mark["mean"]) == ("first", 350 * STEP, 50.0)
    assert mark["text"] == "spike, step 350: 7.5 standard deviations above the recent mean"
    assert charts["loss"]["layer"][-1]["mark"]["shape"] == "triangle-down"
    assert "triangle-down" not in json.dumps(charts["lr"])


def test_evaluations_are_drawn_as_they_are(pair):
    rows = rows_of(held_out(pair).to_dict(), 0)
    found = {(row["arm"], row["tokens"]): row["mean"] for row in rows}
    steps = {"first": range(0, STEPS + 1, 100), "second": range(0, 301, 100)}
    assert found == {(run, STEP * step): 4 - step / STEPS for run, of_run in steps.items() for step in of_run}


def test_a_curve_of_one_point_is_not_drawn_and_the_page_says_so(tmp_path):
    """A run of one update has two evaluations, one of them in the second half, and a single update."""
    folder = RunFolder(begun(tmp_path / "short", f"train.tokens={STEP}", steps=0))
    folder.log(**evaluation(0))
    folder.log(**update(1))
    folder.log(**evaluation(1))
    runs = watch([folder.path])
    assert len(rows_of(held_out(runs).to_dict(), 0)) == 2
    assert held_out(runs, second_half=True) is None
    assert list(of_updates(runs)) == []
    page = run_page.render(runs)
    assert "The second half is not drawn, because it has fewer than two evaluations." in page
    assert "Loss and gradient are not drawn, because there are fewer than two updates." in page


def test_one_evaluation_beside_a_curve_is_a_visible_point(tmp_path):
    short = RunFolder(begun(tmp_path / "short", steps=0))
    for step in (0, 300):
        short.log(**evaluation(step))
    chart = held_out(watch([begun(tmp_path / "long", steps=STEPS), short.path]), second_half=True).to_dict()
    drawn = [
        layer for layer in range(len(chart["layer"])) if {row["arm"] for row in rows_of(chart, layer)} == {"short"}
    ]
    marks = [chart["layer"][layer]["mark"] for layer in drawn]
    assert [(mark["type"], mark["size"], mark.get("opacity", 1)) for mark in marks] == [("point", 50, 1)]


@pytest.mark.slow
def test_what_diverged_is_a_thin_line_up_to_a_cross(tmp_path):
    path = begun(tmp_path / "wild", ended="diverged")
    chart = held_out(watch([path])).to_dict()
    assert [layer["mark"].get("shape") for layer in chart["layer"]].count("cross") == 1
    assert rows_of(chart, 0) == [], "no band, and no line among the others"
    assert "diverged after 300 steps: a loss is NaN" in run_page.render(watch([path]))


@pytest.mark.slow
def test_the_fields_that_differ_are_named(page):
    assert run_page.differing([{"a": 1, "b": 2}, {"a": 1, "c": None}]) == [("b", "2", "-"), ("c", "-", "null")]
    section = page[page.index("How they differ") : page.index("Environment")]
    assert re.findall(r'class="field">(.+?)</th>', section) == ["train.lr"]


@pytest.mark.slow
def test_a_page_contains_all_it_needs_and_reloads_only_while_it_changes(pair, page):
    own = re.sub(r'<script type="module">.*?</script>', "", page, flags=re.DOTALL)
    assert (
        re.findall(r'(?:src|href)="(?!data:)[^"#]*"|https?://(?!vega)', own.replace("https://vega.github.io", "")) == []
    )
    assert 'http-equiv="refresh"' not in page
    assert '<meta http-equiv="refresh" content="7">' in run_page.render(pair, refresh_seconds=7)


def test_runs_of_one_name_are_distinguished_by_their_folders(tmp_path):
    paths = [begun(tmp_path / home / "run", steps=1) for home in ("a", "b")]
    assert [run.name for run in watch(paths)] == ["a/run", "b/run"]
    with pytest.raises(UserError, match="named twice"):
        watch([paths[0], paths[0]])


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    (tmp_path / "study.yaml").touch()
    with pytest.raises(UserError, match=r"not a run folder .* for a study, use `archlab study report`"):
        watch([tmp_path])


@pytest.mark.slow
def test_the_command_prints_a_line_per_run_in_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paths = [str(begun(tmp_path / ("x" * n), ended="finished", steps=300)) for n in (3, 30)]
    assert main(["report", *paths]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "xxx" / "report.html").is_file()
    table = out[: out.index("report:")]
    assert max(map(len, table.splitlines())) <= 80
    assert re.search(r"xxx +finished +300/500 +3\.400 +\d\.\d+ +1\.23K +0 +-", table)
    assert main(["report", *paths, "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)
    assert (first["status"], first["step"], first["bits_per_byte"]) == ("finished", 300, pytest.approx(3.4))


@pytest.mark.slow
def test_a_live_page_is_written_until_all_runs_have_ended(tmp_path, capsys, monkeypatch):
    path = begun(tmp_path / "run", steps=20)
    written = []

    def sleep(seconds):
        assert seconds == 3
        written.append((path / "report.html").read_text())
        if len(written) == 2:
            begun(path, steps=20, ended="finished")

    monkeypatch.setattr(pages.time, "sleep", sleep)
    assert main(["report", str(path), "--live", "3"]) == 0
    assert len(written) == 2
    assert all('content="3"' in page for page in written)
    assert 'http-equiv="refresh"' not in (path / "report.html").read_text()
    assert "is updated every 3 s" in capsys.readouterr().err
