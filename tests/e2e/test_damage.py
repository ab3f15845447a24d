"""Damage to any file of a run folder or study folder: the result is right, or the error names the damage."""

import random
import re
import shutil

import pytest
import torch
from attack import SHORT, STUDY, outcome, run_here, silent
from lab import wait_until

from archlab.errors import UserError
from archlab.exchange.configs import load_config
from archlab.infer.load import load_codec, load_model
from archlab.study.executors.local import Local
from archlab.study.runner import Study
from archlab.study.study_file import read_study
from archlab.training.callback import Callback
from archlab.training.train import train


@pytest.fixture(scope="module")
def folder(shared_lab):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHLAB_CACHE", shared_lab.env["ARCHLAB_CACHE"])
        patch.chdir(shared_lab.folder)
        patch.setattr(Local, "run_all", run_here)
        torch.set_num_threads(1)
        yield shared_lab.folder


class Stop(Callback):
    """Ends a run silently at a step."""

    def __init__(self, step):
        self._step = step

    def on_step(self, metrics):
        if metrics.step == self._step:
            raise KeyboardInterrupt


def flipped(content, draw):
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def another_digit(content, draw):
    """Change a number so that the JSON stays valid and the value plausible."""
    places = [match.start() for match in re.finditer(rb"[1-8](?=\d)", content)]
    place = draw.choice(places) if places else 0
    return content[:place] + bytes([content[place] + 1]) + content[place + 1 :]


def without_a_line(content, draw):
    lines = content.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


def cut_off(content, draw):
    return content[: draw.randrange(len(content))]


DAMAGES = {
    "flipped": flipped,
    "another digit": another_digit,
    "without a line": without_a_line,
    "cut off": cut_off,
    "emptied": lambda content, draw: b"",
    "a list": lambda content, draw: b"[1]\n",
    "a number": lambda content, draw: b"7\n",
    "null": lambda content, draw: b"null\n",
    "deep": lambda content, draw: b"[" * 100_000 + b"\n",
    "zeros": lambda content, draw: bytes(len(content)),
}


def damaged(folder, copy, draw, share=1.0, always=()):
    """Yield (damage, file) for a share of all kinds of damage to each file, each done to the copy; those in `always` all."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        for name, damage in DAMAGES.items():
            if file.name in always or draw.random() < share:
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(folder, copy)
                place = copy / file.relative_to(folder)
                place.write_bytes(damage(file.read_bytes(), draw))
                yield f"{name}: {file.relative_to(folder)}", place


def assert_right_or_named(act, expected, what, place):
    try:
        found, said = act(), ""
    except UserError as error:
        found, said = None, str(error)
    assert found == expected or place.name in said, (what, said)
    return "named" if said else "right"


@pytest.fixture(scope="module")
def whole(folder):
    train(load_config(folder / "tiny.yaml", *SHORT), folder / "whole", Callback())
    return outcome(folder / "whole")


@pytest.fixture(scope="module")
def begun(folder):
    with pytest.raises(KeyboardInterrupt):
        train(load_config(folder / "tiny.yaml", *SHORT), folder / "begun", Stop(11))
    return folder / "begun"


def test_a_run_goes_on_to_the_same_end_or_names_it(folder, begun, whole):
    config, draw = load_config(folder / "tiny.yaml", *SHORT), random.Random(1)
    assert sorted(path.name for path in (begun / "checkpoints").iterdir()) == [
        "step-00000004", "step-00000008",
    ]  # fmt: skip

    def go_on():
        train(config, folder / "copy", Callback())
        return outcome(folder / "copy")

    cases = damaged(begun, folder / "copy", draw, share=0.15)
    ends = {what: assert_right_or_named(go_on, whole, what, place) for what, place in cases}
    assert len(ends) > 15
    assert set(ends.values()) == {"right", "named"}
    # Damage to metrics and checkpoints does not even stop the run.
    assert all(end == "right" for what, end in ends.items() if "metrics" in what or "checkpoints" in what)


def test_a_run_without_a_whole_checkpoint_starts_over_only_if_the_user_deletes_them(folder, begun, whole):
    both, config = folder / "both", load_config(folder / "tiny.yaml", *SHORT)
    for checkpoint in shutil.copytree(begun, both).glob("checkpoints/step-*"):
        (checkpoint / "model.safetensors").write_bytes(b"")
    before = (both / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"step-00000008/.*; .*step-00000004/.*or delete .*checkpoints to start over"):
        train(config, both, Callback())
    assert (both / "metrics.jsonl").read_bytes() == before
    shutil.rmtree(both / "checkpoints")
    train(config, both, Callback())
    assert outcome(both) == whole


def test_what_a_finished_run_says_is_right_or_named(folder, whole):
    config, draw = load_config(folder / "tiny.yaml", *SHORT), random.Random(2)
    text = "the cat sat on a mat"

    def read(run):
        train(config, run, Callback())
        ids = load_codec(run).encode(text)
        logits = load_model(run)(torch.tensor([ids])).tolist()
        return outcome(run), logits, load_config(run)

    expected = read(folder / "whole")
    for what, place in damaged(folder / "whole", folder / "copy", draw):
        assert_right_or_named(lambda: read(folder / "copy"), expected, what, place)


@pytest.fixture(scope="module")
def study(folder):
    (folder / "study.yaml").write_text(STUDY)
    Study(*read_study("study.yaml"), folder / "study").run(silent)
    return folder / "study"


def assert_study_is_right_or_named(study, copy, draw, share, always=()):
    """`study.yaml` is not damaged, because users may edit it."""

    def read():
        summary = Study(*read_study(str(copy)), copy).read()
        if summary.failed:  # the error names these runs and leaves them out
            raise UserError(str(summary.failed))
        return summary

    shutil.copytree(study, copy, dirs_exist_ok=True)
    expected, ends = read(), {}
    for what, place in damaged(study, copy, draw, share, always):
        if place.name != "study.yaml":
            ends[what] = assert_right_or_named(read, expected, what, place)
    return ends


def test_what_a_study_says_is_right_or_named(folder, study):
    always = ("base.yaml", "corpus.json")
    ends = assert_study_is_right_or_named(study, folder / "copied", random.Random(3), 0.2, always)
    assert {ends[f"{damage}: {file}"] for damage in DAMAGES for file in always} == {"named"}


def test_a_summary_without_its_runs_is_right_or_named(folder, study):
    shutil.copytree(study, folder / "alone", ignore=shutil.ignore_patterns("runs"))
    assert_study_is_right_or_named(folder / "alone", folder / "copied alone", random.Random(4), 1.0)


def test_a_model_is_read_while_its_training_saves_every_step(shared_lab, folder):
    process = shared_lab.start("train", "tiny.yaml", "train.tokens=192000", "train.checkpoint_every=1", "--out", "busy")
    try:
        assert wait_until(lambda: len(list(folder.glob("busy/checkpoints/step-*"))) == 2, process)
        steps = set()
        for _ in range(60):
            model = load_model(folder / "busy")
            steps.add(model.embedding.weight.sum().item())
        assert process.poll() is None
        assert len(steps) > 5
    finally:
        process.kill()
        process.communicate()
