"""Tutorials, followed as a reader would: every command, file and line of Python, and then what the text promises."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab import ARCHLAB

import archlab
from archlab.study.study_file import AS_IT_STANDS, library_study

DOCS = Path(archlab.__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(sh|yaml|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def file_of(block: str) -> tuple[str, str] | None:
    """Return (name, text) of a block whose first line is a comment with a file name."""
    named = re.match(r"# ([\w-]+\.(?:yaml|py))\n", block)
    return (named[1], block) if named else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder has the plug-ins of the page that the tutorials refer to, and a few texts."""
    plugins = (DOCS / "plugins.md").read_text(encoding="utf-8")
    for _, block in _BLOCK.findall(plugins):
        if (named := file_of(block)) and named[0] in ("squared.py", "guesses.py"):
            (tmp_path / named[0]).write_text(named[1], encoding="utf-8")
    (tmp_path / "notes").mkdir()
    for file in sorted(Path(re.__file__).parents[1].glob("[a-f]*.py")):
        shutil.copy(file, tmp_path / "notes")
    return tmp_path


@pytest.mark.parametrize("name", sorted(file.stem for file in (DOCS / "tutorials").glob("*.md")))
def test_a_tutorial_can_be_followed(name: str, folder: Path, cache: Path) -> None:
    text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    env = {**os.environ, "ARCHLAB_CACHE": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "80",
           "PATH": f"{ARCHLAB.parent}:{os.environ['PATH']}"}  # fmt: skip
    printed: list[str] = []
    for kind, block in _BLOCK.findall(text):
        if kind == "yaml":
            if named := file_of(block):
                (folder / named[0]).write_text(named[1], encoding="utf-8")
            continue
        typed = [sys.executable, "-c", block] if kind == "python" else ["bash", "-euxc", block]
        done = subprocess.run(typed, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        printed.append(done.stdout)
    assert len(printed) >= 4
    PROMISES[name](folder, "".join(printed))


def student(folder: Path, printed: str) -> None:
    gated, plain = (matrices((folder / f"{name}.svg").read_text(encoding="utf-8")) for name in ("gated", "plain"))
    assert (gated, plain) == (3, 2)  # "A third matrix leads out", "one matrix in and one out"
    gates = library_study("gates", AS_IT_STANDS)
    assert len(gates.arms) == 10
    assert gates.equal
    assert gates.equal.parameters
    assert gates.tune.keys() == {"train.lr"}
    assert all(
        set(changed) <= {"model.mlp", "model.mlp.kind", "model.mlp.activation"} for changed in gates.arms.values()
    )
    study = archlab.load_study(folder / "gates-smoke")
    comparisons = [arm.comparison for arm in study.arms if arm.comparison]
    assert len(comparisons) == 9
    assert {comparison.verdict for comparison in comparisons} == {"not distinguishable"}
    assert all(comparison.smallest_effect for comparison in comparisons)  # "how large a difference would have to be"
    assert (len(study.seeds), {arm.tokens for arm in study.arms}) == (2, {7168})
    assert (folder / "mine.yaml").read_text(encoding="utf-8").count("#") > 20  # "every field is explained"


def matrices(svg: str) -> int:
    """Return the number of weight matrices in the frame of the MLP."""
    return len(set(re.findall(r">(Up|Gate|Down) projection<", svg)))


def researcher(folder: Path, printed: str) -> None:
    rows = archlab.load_study(folder / "squared").frame()
    assert len(rows) == 2 * 3  # "one row per run"
    lines = (folder / "squared" / "runs.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(rows)  # "the same rows"
    assert all(row["guessed"] is not None for row in rows)


def engineer(folder: Path, printed: str) -> None:
    assert archlab.cost(archlab.load_config(folder / "mine.yaml")).parameters.total == pytest.approx(1e9, rel=0.01)
    for promised in ("*", "published MFU", "model.norm.placement", "model.attention.qk_norm"):
        assert promised in printed, promised
    assert "gpu" in library_study("stability", AS_IT_STANDS).scales


PROMISES = {"student": student, "researcher": researcher, "engineer": engineer}
