"""Follow a page of docs/ that shows how to add something to archlab, literally, in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "docs", "README.md", "CONTRIBUTING.md", "pyproject.toml", "constraints.txt")


class Recipe:
    """A page with its files, its changes and its checks."""

    def __init__(self, page: str) -> None:
        self.text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        self.blocks: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", self.text, re.M | re.S)
        """(language, text) of each block."""

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield (path, content) of each complete file on the page."""
        yield from re.findall(r"`([\w/]+\.py)`, the complete file:\n\n```python\n(.*?)^```$", self.text, re.M | re.S)

    def additions(self) -> Iterator[tuple[str, str]]:
        """Yield (path, text) of each text that the page appends to a file."""
        yield from re.findall(
            r"[Aa]dd\s+to\s+the\s+end\s+of\s+`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", self.text, re.M | re.S
        )

    def hunks(self) -> Iterator[tuple[str, str]]:
        """Yield (path, diff) of each change of lines."""
        yield from re.findall(r"[Ii]n\s+`([\w./-]+)`:\n\n```diff\n(.*?)^```$", self.text, re.M | re.S)

    def commands(self) -> list[str]:
        """Return the lines of the page's last block."""
        language, block = self.blocks[-1]
        assert language == ""
        return block.splitlines()

    def follow(self, root: Path) -> None:
        """Write the files, the additions and the changes in a copy."""
        for path, content in self.files():
            assert not (root / path).exists(), f"{path}: archlab has this now; the page needs another example"
            (root / path).write_text(content)
        for path, text in self.additions():
            blank = "\n\n" if path.endswith(".py") else ""
            (root / path).write_text((root / path).read_text() + blank + text)
        for path, hunk in self.hunks():
            (root / path).write_text(apply(root / path, hunk))


def apply(file: Path, hunk: str) -> str:
    """Return the text of `file` with a diff applied. The lines before the change must occur exactly once."""
    text, lines = file.read_text(), hunk.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
    assert text.count(before) == 1, f"{file}: {before}"
    return text.replace(before, after)


def copy_of_repository(root: Path) -> Path:
    """Copy everything that the checks read."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, root / name)
    return root


def check_forgotten(path: str, command: str, test: str, copy: Path, tmp_path: Path) -> None:
    """Restore one original file in a copy that followed a page; the named test must fail."""
    forgotten = tmp_path / "forgotten"
    shutil.copytree(copy, forgotten)
    shutil.copy(ROOT / path, forgotten / path)
    done = run(command, forgotten)
    assert done.returncode == 1, done.stdout
    assert test in done.stdout


def run(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a page's checks in a copy."""
    program, *arguments = command.split()
    assert program == "pytest"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def check(command: str, root: Path) -> str:
    """Run a line of a page's checks, which must pass, and return its output."""
    done = run(command, root)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout
