"""Pages of studies in `archlab ui`: they show the runs of the command line, and train one more seed."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from archlab.cli.app import main
from archlab.config.core.yaml_text import to_yaml
from archlab.errors import UserError
from archlab.study.study_file import library_values, read_study
from archlab.ui.app import create_app
from archlab.ui.lab.plan import checked, example_answers, first_text, text_of_answers
from archlab.ui.lab.processes import StudyProcesses
from archlab.ui.lab.runs import is_trained_elsewhere
from tiny import MODEL, TRAIN

HERE = "http://127.0.0.1:8765"
FOLDER = Path("studies/which")


class NoProcesses(StudyProcesses):
    """Processes that are not started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[Path, str, int | None]] = []

    def start(self, folder: Path, source: str, n_seeds: int | None = None) -> None:
        self.started.append((folder, source, n_seeds))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, text: Path):
    """Return a folder with a study that the command line has finished."""
    place = tmp_path_factory.mktemp("place")
    values = {
        "question": "Which?",
        "base": "base.yaml",
        "set": {"data.path": str(text)},
        "budget": {"tokens": 640},
        "seeds": 2,
        "arms": {"a": {}, "b": {"model.norm.kind": "layernorm"}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("ARCHLAB_CACHE", str(place / "cache"))
        Path("base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
        Path("which.yaml").write_text(to_yaml(values))
        assert main(["study", "run", "which.yaml", "--workers", "1", "--threads", "1"]) == 0
        yield place


@pytest.fixture
def processes() -> NoProcesses:
    return NoProcesses()


@pytest.fixture
def client(place: Path, processes: NoProcesses) -> TestClient:
    app = create_app(Path(), "token", 8765, ["127.0.0.1"], processes)
    client = TestClient(app, base_url=HERE, raise_server_exceptions=False, follow_redirects=False)
    assert client.get("/?token=token").status_code == 303
    return client


def cells(page: str) -> dict[str, list[str]]:
    """Return the held-out values in the grid of runs, by arm."""
    rows = re.findall(r'<tr><th scope="row">.*?</span>(\w+)</th>(.*?)</tr>', page, re.DOTALL)
    return {arm: re.findall(r"<small>([\d.]+)</small>", row) for arm, row in rows}


def recorded() -> dict[str, list[str]]:
    """Return the scores that the runs themselves have recorded, by arm, in the order of the seeds."""
    scores: dict[str, dict[int, float]] = {"a": {}, "b": {}}
    for run in FOLDER.glob("runs/*"):
        config = (run / "config.yaml").read_text()
        seed = re.search(r"seed: (\d+)", config)
        scores["b" if "layernorm" in config else "a"][int(seed[1]) if seed else 0] = json.loads(
            (run / "metrics.jsonl").read_text().splitlines()[-1]
        ).get("bits_per_byte")
    return {arm: [f"{by_seed[seed]:.4f}" for seed in sorted(by_seed)] for arm, by_seed in scores.items()}


def test_the_page_shows_the_value_of_each_run(client: TestClient):
    page = client.get(f"/studies/of/{FOLDER}").text
    assert cells(page) == recorded()
    assert json.loads((FOLDER / "summary.json").read_text())["answer"] in unescape(page)


def test_pages_of_studies_do_not_load_torch(place: Path):
    code = """
import sys
from pathlib import Path
from starlette.testclient import TestClient
from archlab.ui.app import create_app
from archlab.ui.lab.processes import StudyProcesses
client = TestClient(create_app(Path(), "t", 1, ["127.0.0.1"], StudyProcesses()), base_url="http://127.0.0.1:1")
client.get("/?token=t")
for path in (
    "/studies", "/studies/of/studies/which", "/choice/swiglu", "/choice/batch-norm", "/studies/new?from=batch-norm",
    "/vs/gpt-2/llama-3-8b",
):
    assert client.get(path).status_code == 200
    assert "torch" not in sys.modules, path
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_study_without_a_list_of_its_runs_shows_those_of_its_summary(client: TestClient):
    file = FOLDER / "runs.json"
    before = file.read_text()
    file.unlink()
    assert cells(client.get(f"/studies/of/{FOLDER}").text) == recorded()
    file.write_text(before)


def test_the_form_and_the_command_predict_the_same_time_and_memory(
    client: TestClient, capsys: pytest.CaptureFixture[str]
):
    text = re.sub(r"(?m)^.*data.path.*\n", "", Path("which.yaml").read_text())
    Path("same.yaml").write_text(text)
    assert main(["study", "show", "same.yaml"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    (time,) = re.findall(r"one after another: (about .*?)\. Start-up", shown)
    (memory,) = re.findall(r"([\d.]+ [GM]iB) of memory", shown)
    page = client.post("/studies/plan", data={"name": "same", "text": text}, headers={"origin": HERE}).text
    planned = " ".join(re.sub(r"<[^>]+>", "", unescape(page)).split())
    assert time.replace("`", "") in planned
    assert f"<dd>up to {memory}</dd>" in page


@pytest.mark.parametrize("name", ["gates", "encoder-decoder", "hybrid-recall", "late-qk-norm"])
def test_the_form_of_a_study_that_comes_with_archlab_can_be_checked(name: str):
    assert checked(first_text(name, "smoke"), Path()).question == library_values(name)["question"]


def test_the_list_and_the_page_agree_whether_a_study_is_finished(client: TestClient):
    """With one more planned seed, the summary of the command line is older than the plan."""

    def shown() -> tuple[bool, bool]:
        listed = re.search(rf"{FOLDER}.*?</tr>", client.get("/studies").text, re.DOTALL)
        assert listed
        return "not finished" not in listed[0], "Train one more seed" in client.get(f"/studies/of/{FOLDER}").text

    assert shown() == (True, True)
    study = FOLDER / "study.yaml"
    before = study.read_text()
    study.write_text(before.replace("seeds: 2", "seeds: 3"))
    assert shown() == (False, False)
    study.write_text(before)


def test_a_finished_study_is_listed_with_its_answer(client: TestClient):
    answer = json.loads((FOLDER / "summary.json").read_text())["answer"]
    assert answer in unescape(client.get("/studies").text)


def test_a_study_without_runs_prepares_or_has_not_begun(client: TestClient, processes: NoProcesses):
    folder = Path("studies/empty")
    folder.mkdir()
    (folder / "study.yaml").write_text((FOLDER / "study.yaml").read_text())

    def shown(words: str) -> None:
        assert f"{folder} · {words} ·" in client.get(f"/studies/of/{folder}").text
        assert f">{words}</td>" in client.get("/studies").text

    shown("no run has begun")
    with (folder.parent / "empty.log").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        shown("preparing in another process")


def test_a_study_that_was_paused_before_it_had_a_folder_can_be_started(
    client: TestClient, processes: NoProcesses, monkeypatch: pytest.MonkeyPatch
):
    folder = Path("studies/early")
    Path("early.yaml").write_text(Path("which.yaml").read_text())
    monkeypatch.setattr(processes, "_processes", {folder: None})
    monkeypatch.setattr(processes, "is_running", lambda _: False)
    page = client.get(f"/studies/of/{folder}").text
    assert "/studies/resume/studies/early" in page
    assert "archlab study run early.yaml" in page
    assert read_study("early.yaml")[1].question in unescape(page)
    row = re.search(r"studies/early</a>.*?</tr>", client.get("/studies").text, re.DOTALL)
    assert row
    assert ">no run has begun</td>" in row[0]
    assert read_study("early.yaml")[1].question in unescape(row[0])


def test_a_study_without_a_folder_is_listed_after_the_server_was_started_again(
    client: TestClient, processes: NoProcesses
):
    Path("lost.yaml").write_text(Path("which.yaml").read_text())
    assert client.get("/studies/of/studies/lost").status_code == 404
    log = Path("studies/lost.log")  # which the process of the study writes before it makes the folder
    log.write_text("interrupted")
    row = re.search(r"studies/lost</a>.*?</tr>", client.get("/studies").text, re.DOTALL)
    assert row
    assert ">no run has begun</td>" in row[0]
    assert "/studies/resume/studies/lost" in client.get("/studies/of/studies/lost").text
    assert client.post("/studies/resume/studies/lost", headers={"origin": HERE}).status_code == 303
    assert processes.started == [(Path("studies/lost"), "lost.yaml", None)]
    log.unlink()


def test_answers_give_the_text_of_a_study(client: TestClient):
    arms = "first:\nsecond: model.norm.kind=layernorm 'model.mlp={kind: gated, d_ff: 96}'\n"
    answers = {"question": "Which: a or b?", "base": "base.yaml", "tokens": "2K", "seeds": "4", "arms": arms}
    page = client.get("/studies/new", params=answers)
    (text,) = re.findall(r'<textarea id="text"[^>]*>(.*?)</textarea>', page.text, re.DOTALL)
    study = checked(unescape(text), Path())
    assert study.question == "Which: a or b?"
    assert study.budget.tokens == 2000
    assert study.seeds == 4
    assert study.arms["first"] == {}
    second = {"model.norm.kind": "layernorm", "model.mlp": {"kind": "gated", "d_ff": 96}}
    assert study.arms["second"] == second
    assert study.set == {}, "a config of the user keeps its training settings"
    for_preset = client.get("/studies/new", params={**answers, "base": "tiny-llama"}).text
    assert "train.seq_len: 128" in unescape(for_preset)
    assert unescape(re.findall(r'<textarea id="arms"[^>]*>(.*?)</textarea>', page.text, re.DOTALL)[0]) == arms


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ("nothing", "'nothing' has no name"),
        ("a: model.n_layers", "expected key=value"),
        ("a: 'x", "No closing quotation"),
        ("a:\na: model.n_layers=1", "a is named twice"),
    ],
)
def test_a_wrong_line_of_an_arm_is_one_message(client: TestClient, arms: str, message: str):
    answer = client.get("/studies/new", params={"arms": arms})
    assert answer.status_code == 422
    assert message in unescape(answer.text)


@pytest.mark.parametrize(("tokens", "allowed"), [("0", "at least 1"), ("-5", "at least 1"), ("many", "a whole number")])
def test_a_wrong_number_of_tokens_is_refused_with_what_is_allowed(tokens: str, allowed: str):
    text = text_of_answers({**example_answers(), "tokens": tokens})
    with pytest.raises(UserError, match=rf"budget\.tokens.*; allowed: {allowed}$"):
        checked(text, Path())


def test_a_study_that_is_being_paused_says_so(
    client: TestClient, processes: NoProcesses, monkeypatch: pytest.MonkeyPatch
):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        monkeypatch.setattr(processes, "_processes", {FOLDER: process})
        assert "Saving the runs" not in client.get(f"/studies/of/{FOLDER}").text
        monkeypatch.setattr(process, "send_signal", lambda _: None)  # it takes a while to save
        assert client.post(f"/studies/pause/{FOLDER}", headers={"origin": HERE}).status_code == 303
        assert re.search(r"<button[^>]* disabled>Saving the runs", client.get(f"/studies/of/{FOLDER}").text)
        os.kill(process.pid, signal.SIGKILL)  # process.kill would send nothing now
        process.wait()
        assert "Saving the runs" not in client.get(f"/studies/of/{FOLDER}").text


def test_a_study_shows_training_losses_and_held_out_values(client: TestClient):
    page = client.get(f"/studies/of/{FOLDER}").text
    assert re.findall(r'<h2 id="chart-\d+">([^<]+)<', page)[0] == "Training loss in nats per token"
    (loss, *_) = re.findall(r'<svg class="curves".*?</svg>', page, re.DOTALL)
    assert loss.count("<polyline") == 4, "two arms, two seeds"


def test_a_study_cannot_extend_one_with_plug_ins(client: TestClient):
    form = {"name": "mine", "text": "extends: batch-norm\n"}
    answer = client.post("/studies/plan", data=form, headers={"origin": HERE})
    assert "plugins: a study from the browser cannot run plug-ins" in answer.text
    listed = client.get("/studies").text
    assert "only in a terminal: <code>archlab study run batch-norm</code>" in listed


def test_a_study_whose_folder_was_moved_away_can_still_be_paused(
    client: TestClient, processes: NoProcesses, monkeypatch: pytest.MonkeyPatch
):
    folder = Path("studies/moved")
    monkeypatch.setattr(processes, "_processes", {folder: None})
    monkeypatch.setattr(processes, "is_running", lambda which: which == folder)
    assert "/studies/pause/studies/moved" in client.get(f"/studies/of/{folder}").text
    row = re.search(r"studies/moved</a>.*?</tr>", client.get("/studies").text, re.DOTALL)
    assert row
    assert ">preparing</td>" in row[0]


def test_a_run_beyond_the_memory_of_the_machine_is_said_before_it_starts(client: TestClient):
    def plan(base: str) -> str:
        text = f"question: q\nbase: {base}\narms: {{a: {{}}, b: {{model.head.softcap: 30}}}}\nbudget: {{tokens: 20K}}\n"
        return client.post("/studies/plan", data={"name": "big", "text": text}, headers={"origin": HERE}).text

    assert "; this machine has" in plan("llama-3.1-405b")
    assert "; this machine has" not in plan("tiny-llama")


def test_two_servers_do_not_train_the_same_study(place: Path):
    first, second, folder = StudyProcesses(), StudyProcesses(), Path("studies/both")
    first.start(folder, "which.yaml")
    assert is_trained_elsewhere(folder)
    with pytest.raises(UserError, match="another process trains"):
        second.start(folder, "which.yaml")
    first.stop()
    assert not is_trained_elsewhere(folder)


def test_runs_of_other_arms_are_not_shown(client: TestClient):
    study = FOLDER / "study.yaml"
    before = study.read_text()
    study.write_text(before.replace("layernorm", "none"))
    page = client.get(f"/studies/of/{FOLDER}").text
    study.write_text(before)
    assert "its arms have changed" in page
    assert cells(page) == {"a": [], "b": []}
    assert 'class="answer"' not in page


@pytest.mark.parametrize(
    ("begun", "time"),
    [
        pytest.param([0, 0, 300, 300], "About 5 min for all arms", id="two at once"),
        pytest.param([0, 300, 600, 900], "About 10 min for all arms", id="one after another"),
    ],
)
def test_one_more_seed_takes_as_long_as_those_before(client: TestClient, begun: list[int], time: str):
    files = {name: sorted(FOLDER.glob(f"runs/*/{name}")) for name in ("env.json", "summary.json")}
    before = {file: file.stat() for named in files.values() for file in named}
    for start, first, last in zip(begun, *files.values(), strict=True):
        os.utime(first, (start, start))
        os.utime(last, (start + 300, start + 300))
    page = client.get(f"/studies/of/{FOLDER}").text
    for file in files["env.json"]:
        os.utime(file, (begun[-1] + 300, begun[-1] + 300))  # as a copy that lost its times
    copied = client.get(f"/studies/of/{FOLDER}").text
    for file, stat in before.items():
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert time in page
    assert "for all arms" not in copied
    assert "Train one more seed" in copied


def test_one_more_seed_is_trained_by_the_command_that_the_page_shows(client: TestClient, processes: NoProcesses):
    page = client.get(f"/studies/of/{FOLDER}").text
    assert f"archlab study run {FOLDER} --seeds 3" in page
    answer = client.post(f"/studies/seed/{FOLDER}", headers={"origin": HERE})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/studies/of/{FOLDER}")
    assert processes.started == [(FOLDER, str(FOLDER), 3)]
    study = (FOLDER / "study.yaml").read_text()
    (FOLDER / "study.yaml").write_text(study.replace("seeds: 2", "seeds: 3"))  # as soon as the command has begun
    begun = client.get(f"/studies/of/{FOLDER}").text
    assert 'class="answer"' not in begun
    assert client.post(f"/studies/seed/{FOLDER}", headers={"origin": HERE}).status_code == 422
    (FOLDER / "study.yaml").write_text(study)
    assert main(["study", "run", str(FOLDER), "--seeds", "3", "--workers", "1", "--threads", "1"]) == 0
    page = client.get(f"/studies/of/{FOLDER}").text
    assert [len(values) for values in cells(page).values()] == [3, 3]
    assert cells(page) == recorded()
    assert "not planned" in " ".join(json.loads((FOLDER / "summary.json").read_text())["warnings"])
    assert "1 of the 3 compared seeds was not planned" in page


def test_a_study_refuses_too_few_seeds(place: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["study", "run", "which.yaml", "--seeds", "1"]) == 2
    assert "seeds" in capsys.readouterr().err
