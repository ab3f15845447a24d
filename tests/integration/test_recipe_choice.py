"""Follow docs/adding_a_choice.md literally in a copy of the repository."""

from pathlib import Path

import pytest

from recipe import Recipe, check, check_forgotten, copy_of_repository

RECIPE = Recipe("adding_a_choice.md")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository with an additional activation and norm."""
    root = copy_of_repository(tmp_path_factory.mktemp("copy"))
    assert (len(list(RECIPE.additions())), len(list(RECIPE.hunks()))) == (5, 5)
    RECIPE.follow(root)
    return root


@pytest.mark.parametrize("command", RECIPE.commands())
def test_the_checks_of_the_page_pass(command: str, copy: Path) -> None:
    check(command, copy)


@pytest.mark.parametrize(
    ("path", "command", "test"),
    [
        ("tests/unit/test_cost_saved.py", "pytest tests/unit/test_cost_saved.py -k row", "test_every_kind_has_a_row"),
        ("tests/invariants/grid.py", "pytest tests/invariants/test_grid.py -k every_kind", "is_in_the_grid"),
        ("tests/unit/test_model_parts.py", "pytest tests/unit/test_model_parts.py -k formula", "has_its_formula_here"),
        ("src/archlab/model/norms.py", "pytest tests/unit/test_every_kind.py -k l1norm", "an_implementation"),
    ],
)
def test_a_forgotten_step_is_noticed(path: str, command: str, test: str, copy: Path, tmp_path: Path) -> None:
    check_forgotten(path, command, test, copy, tmp_path)
