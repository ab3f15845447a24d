"""Follow the steps of docs/adding_a_family.md literally in a copy of the repository."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recipe import Recipe, check, check_forgotten, copy_of_repository

RECIPE = Recipe("adding_a_family.md")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository after steps 1 to 3."""
    root = copy_of_repository(tmp_path_factory.mktemp("copy"))
    assert [Path(path).stem for path, _ in RECIPE.files()] == ["iquestcoder", "iquestcoder"]
    RECIPE.follow(root)
    assert len(list(RECIPE.hunks())) == sum(language == "diff" for language, _ in RECIPE.blocks) == 1
    readme, n_replaced = re.subn(
        r"\d+(?=(?: published)? families)", lambda n: str(int(n[0]) + 1), (root / "README.md").read_text()
    )
    assert n_replaced == 1
    (root / "README.md").write_text(readme)
    (script,) = re.findall(r"`python (\S+)` writes", RECIPE.text)
    subprocess.run([sys.executable, script], cwd=root, env={**os.environ, "PYTHONPATH": str(root / "src")}, check=True)
    return root


@pytest.mark.parametrize("command", RECIPE.commands())
def test_the_checks_of_the_page_pass(command: str, copy: Path) -> None:
    printed = check(command, copy)
    if "iquestcoder" in command:
        n_passed = int(re.findall(r"(\d+) passed", printed)[-1])
        assert n_passed >= 20, printed


def test_a_forgotten_step_is_noticed(copy: Path, tmp_path: Path) -> None:
    """The check of the reasons fails if the list of refused families still contains the family."""
    check_forgotten(
        "src/archlab/families/refused.yaml",
        "pytest tests/unit/test_causal_classes.py",
        "test_every_class_has_one_answer",
        copy,
        tmp_path,
    )
