"""A power cut at any moment: the resumed run or study ends as if nothing had happened."""

import os
import random

import pytest
import torch
from attack import SHORT, STUDY, outcome, run_here, silent
from disk import MODES, Disk

from archlab.exchange.configs import load_config
from archlab.files import folder_atomic
from archlab.study.executors.local import Local
from archlab.study.runner import Study
from archlab.study.study_file import read_study
from archlab.training.callback import Callback
from archlab.training.run_folder import RunFolder
from archlab.training.train import train


@pytest.fixture
def folder(shared_lab, monkeypatch):
    monkeypatch.setenv("ARCHLAB_CACHE", shared_lab.env["ARCHLAB_CACHE"])
    monkeypatch.chdir(shared_lab.folder)
    torch.set_num_threads(1)
    return shared_lab.folder


def cuts(root, share, seed, act):
    """Act in `root`. Return folders with what a power cut would leave, at the end and at a random share of moments."""
    draw, taken = random.Random(seed), []

    def cut(mode):
        taken.append(root.with_name(f"{root.name}-{len(taken)}-{mode}"))
        disk.cut(taken[-1], mode, draw)

    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(root, patch, lambda: draw.random() < share and cut(draw.choice(MODES)))
        act()
    for mode in MODES:
        cut(mode)
    disk.close()
    return taken


def test_a_run_survives_every_cut(folder):
    config = load_config(folder / "tiny.yaml", *SHORT)
    left = cuts(folder / "disk", 0.08, 1, lambda: train(config, folder / "disk" / "run", Callback()))
    whole = outcome(folder / "disk" / "run")
    assert [line["step"] for line in whole[1] if "lr" in line] == list(range(1, 21))
    assert len(left) > 9
    steps = [len(list(image.glob("run/checkpoints/*"))) for image in left]
    assert len(set(steps)) > 1
    for image in left:
        train(config, image / "run", Callback())
        assert outcome(image / "run") == whole, image.name


def test_what_has_ended_stays_ended(folder, monkeypatch):
    """A finished run needs no more steps after a cut, whatever was not synced."""
    config = load_config(folder / "tiny.yaml", *SHORT)
    *_, synced, names, torn = cuts(folder / "done", 0, 2, lambda: train(config, folder / "done" / "run", Callback()))
    monkeypatch.setattr("archlab.training.loop.update", None)
    for image in (synced, names, torn):
        assert train(config, image / "run", Callback()) == RunFolder(folder / "done" / "run").summary()


def test_a_study_survives_every_cut(folder, monkeypatch):
    (folder / "study.yaml").write_text(STUDY)
    name, config = read_study("study.yaml")

    def result(out):
        ended = Study(name, config, out).run(silent)
        assert ended == Study(name, config, out).read()
        return [(arm.name, arm.values, arm.diverged, arm.curves, arm.comparison) for arm in ended.arms]

    monkeypatch.setattr(Local, "run_all", run_here)
    left = cuts(folder / "studies", 0.02, 3, lambda: result(folder / "studies" / "out"))
    whole = result(folder / "studies" / "out")
    assert [(arm[0], len(arm[1]), arm[2]) for arm in whole] == [("first", 2, []), ("wild", 2, [0, 1])]
    assert len(left) > 6
    for image in left:
        assert result(image / "out") == whole, image.name


def test_an_atomic_folder_is_whole_after_every_cut(tmp_path):
    """Data folders, exports and flattened files exist at the end, and never half-written."""
    out = tmp_path / "disk" / "new" / "out"

    def act():
        with folder_atomic(out) as temporary:
            (temporary / "below").mkdir()
            for file in ("one", "below/two"):
                (temporary / file).write_text(file)

    left = cuts(tmp_path / "disk", 1, 4, act)
    found = [sorted(p.name for p in (image / "new" / "out").rglob("*")) for image in left]
    assert [] in found
    assert all(names in ([], ["below", "one", "two"]) for names in found)
    for image in left[-len(MODES) :]:
        assert (image / "new" / "out" / "below" / "two").read_text() == "below/two"


def test_the_disk_forgets_what_was_not_synced(tmp_path):
    """The simulated disk itself works."""

    def act():
        for name in ("synced", "unsynced"):
            with open(tmp_path / "disk" / name, "w") as file:
                file.write("first")
                file.flush()
                if name == "synced":
                    os.fsync(file.fileno())
                    file.write("second")
        os.replace(tmp_path / "disk" / "synced", tmp_path / "disk" / "renamed")

    left = {path.name.rpartition("-")[2]: path for path in cuts(tmp_path / "disk", 0, 0, act)}
    found = {mode: {file.name: file.read_text() for file in path.iterdir()} for mode, path in left.items()}
    assert found["synced"] == {}
    assert found["names"] == {"renamed": "first", "unsynced": ""}
    assert "firstsecond".startswith(found["torn"]["renamed"])
    assert len(found["torn"]["renamed"]) >= 5
