"""Every command, file and line of Python in the tutorials, typed one after the other as a reader would."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab import ARCHLAB

import archlab

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
    commands = 0
    for kind, block in _BLOCK.findall(text):
        if kind == "yaml":
            if named := file_of(block):
                (folder / named[0]).write_text(named[1], encoding="utf-8")
            continue
        typed = [sys.executable, "-c", block] if kind == "python" else ["bash", "-euxc", block]
        done = subprocess.run(typed, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        commands += 1
    assert commands >= 4
