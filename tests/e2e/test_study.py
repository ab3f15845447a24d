"""`archlab study` from the first run to the report: more seeds, reading again, and tuning."""

import json
import re

from lab import lines
from names import STUDY, results, runs, summary


def test_the_text_is_named_before_the_runs_and_in_the_answer(study, finished):
    folder, printed, (first, _) = finished
    text = study.folder / "text.txt"
    size = f"{text.stat().st_size / 1000:.3g} kB in 19 folds"  # each has 5%; the first stretch of a single file is in none of them
    assert f"tokens of text.txt ({size})," in " ".join(printed.split())
    assert f"tokens of text.txt ({size})," in (folder / "report.html").read_text()
    errors = study.run("study", "run", "names.yaml", "--out", folder).stderr
    assert errors.splitlines()[0] == f"text: {text}, {size}; 9 are used for evaluation"
    assert set(first["values"]) == {"0", "1"}
    assert len(runs(folder)) == 4


def test_a_diverging_arm_is_counted(finished):
    folder, printed, (_, wild) = finished
    assert wild["values"] == {"0": None, "1": None}
    assert (wild["diverged"], wild["comparison"]["verdict"]) == ([0, 1], "diverged")
    assert "wild diverged on 2 of 2 seeds" in " ".join(printed.split()).lower()
    ended = [json.loads((run / "summary.json").read_text())["status"] for run in runs(folder).values()]
    assert sorted(ended) == ["diverged", "diverged", "finished", "finished"]


def test_the_report_is_there_and_named(finished):
    folder, printed, _ = finished
    assert f"report: {folder / 'report.html'}" in printed
    page = (folder / "report.html").read_text()
    assert "Does it train at any rate?" in page
    assert not re.search(r'(src|href)="https?:', page)
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")


def test_reporting_again_needs_only_the_runs(study, finished):
    folder, printed, expected = finished
    for name in ("report.html", "report.png", "summary.json"):
        (folder / name).unlink()
    again = study.run("study", "report", folder)
    assert again.stdout == printed
    assert results(folder) == expected
    assert (folder / "report.html").exists()
    assert (folder / "report.png").exists()


def test_one_more_seed_trains_only_that_seed(study, finished):
    folder, _, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*")}
    (study.folder / "more.yaml").write_text(STUDY.replace("seeds: 2", "seeds: 3"))
    done = study.run("study", "run", "more.yaml", "--out", folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    new = set(runs(folder)) - {path.parent.name for path in before}
    seeds = [re.search(r"seed: (\d+)", (folder / "runs" / n / "config.yaml").read_text())[1] for n in new]
    assert seeds == ["2", "2"]
    assert set(results(folder)[0]["values"]) == {"0", "1", "2"}
    assert done.stderr.count("seed 2") == 2
    assert "seed 0" not in done.stderr


def test_two_processes_work_on_one_study(study):
    """The first process to reach a run trains it, and both processes end with the same summary."""
    (study.folder / "both.yaml").write_text("extends: names.yaml\nseeds: 3\nquestion: Who trains what?\n")
    both = [study.start("study", "run", "both.yaml", "--out", "both", "--workers", "1") for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    answers = [" ".join(out.partition("report:")[0].split()) for out, _ in said]
    assert answers[0] == answers[1]
    folder = study.folder / "both"
    for run in runs(folder).values():
        steps = [line["step"] for line in lines(run / "metrics.jsonl") if "lr" in line]
        assert steps == sorted(set(steps))
    assert all(summary(folder)["arms"][0]["values"].values())


# --- tuning ---------------------------------------------------------------------------------------


def test_tuning_picks_the_best_and_warns_at_the_edge(study):
    (study.folder / "tune.yaml").write_text(
        "extends: names.yaml\narms: {only: {}}\ntune: {train.lr: [1.0e-5, 1.0e-3, 1.0e-2]}\nbudget: {tokens: 3200}\n"
    )
    done = study.run("study", "run", "tune.yaml", "--out", "tuned")
    (arm,) = summary(study.folder / "tuned")["arms"]
    scores = {
        float(rate): float(score)
        for rate, score in re.findall(r"only, train.lr=(\S+), seed 1000: (\S+) bits per byte", done.stderr)
    }
    assert len(scores) == 3
    assert arm["tuned"] == {"train.lr": min(scores, key=scores.__getitem__)} == {"train.lr": 0.01}
    assert "note: only: train.lr = 0.01 is best, at the edge of its grid" in done.stdout
    assert arm["config"]["train"]["lr"] == 0.01
