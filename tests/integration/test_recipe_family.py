"""docs/adding_a_family.md, followed to the letter in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "docs" / "adding_a_family.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", RECIPE, re.MULTILINE | re.DOTALL)
COPIED = ("src", "tests", "docs", "README.md", "CONTRIBUTING.md", "pyproject.toml", "constraints.txt")


def files() -> Iterator[tuple[str, str]]:
    """Yield (path, content) of each file that the page gives whole."""
    yield from re.findall(r"`([\w/]+\.py)`, whole:\n\n```python\n(.*?)^```$", RECIPE, re.MULTILINE | re.DOTALL)


def apply(text: str, hunk: str) -> str:
    """Return the text with the lines of a diff changed, which must stand in it once."""
    lines = hunk.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
    assert text.count(before) == 1, before
    return text.replace(before, after)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository after steps 1 to 3."""
    root = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    written = list(files())
    assert [Path(path).stem for path, _ in written] == ["jais2", "jais2"]
    for path, content in written:
        assert not (root / path).exists(), f"{path}: archlab has this family now; the page needs another example"
        (root / path).write_text(content)
    registry = root / "src/archlab/families/registry.py"
    hunks = [block for language, block in BLOCKS if language == "diff"]
    assert len(hunks) == 2
    for hunk in hunks:
        registry.write_text(apply(registry.read_text(), hunk))
    readme, n_replaced = re.subn(
        r"\d+(?=(?: published)? families)", lambda n: str(int(n[0]) + 1), (root / "README.md").read_text()
    )
    assert n_replaced == 2
    (root / "README.md").write_text(readme)
    return root


def commands() -> list[str]:
    """Return the lines of the page's last block."""
    language, block = BLOCKS[-1]
    assert language == ""
    return block.splitlines()


@pytest.mark.parametrize("command", commands())
def test_the_checks_of_the_page_pass(command: str, copy: Path) -> None:
    program, *arguments = command.split()
    assert program == "pytest"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    if "jais2" in command:
        n_passed = int(re.findall(r"(\d+) passed", run.stdout)[-1])
        assert n_passed >= 20, run.stdout


def test_a_forgotten_step_is_noticed(copy: Path, tmp_path: Path) -> None:
    """Without the lists of step 2, the check of the lists fails."""
    forgotten = tmp_path / "forgotten"
    shutil.copytree(copy, forgotten)
    shutil.copy(ROOT / "src/archlab/families/registry.py", forgotten / "src/archlab/families/registry.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit/test_layout.py", "-k", "families"],
        cwd=forgotten, env={**os.environ, "PYTHONPATH": str(forgotten / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "test_the_table_of_families_leaves_none_out" in run.stdout
