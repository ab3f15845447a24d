"""The user documentation: it has every field, its examples load, and its functions exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel

import archlab
from archlab.atlas.models import entries
from archlab.cli.app import main
from archlab.families.registry import FAMILIES
from archlab.study.design import arms
from archlab.study.schema import StudyConfig
from archlab.study.study_file import read_study
from schema_classes import classes_in

HOME = Path(archlab.__file__).parent.parent.parent
STUDIES = (HOME / "docs" / "studies.md").read_text(encoding="utf-8")
README = (HOME / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def fields(schema: type[BaseModel], at: str = "") -> Iterator[str]:
    """Yield the dotted name of every field that holds a value."""
    for name, field in schema.model_fields.items():
        below = [] if get_origin(field.annotation) is dict else classes_in(field.annotation)
        plain = [part for part in get_args(field.annotation) if part not in (*below, type(None))]
        yield from [f"{at}{name}"] if plain or not below else []
        yield from fields(below[0], f"{at}{name}.") if below else []


def test_every_field_of_a_study_is_explained_once():
    assert sorted(re.findall(r"^\*\*`([a-z_.]+)`\*\*", STUDIES, re.MULTILINE)) == sorted(fields(StudyConfig))


EXAMPLES = blocks(STUDIES + README, "yaml")


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_study_that_is_shown_can_be_run(example, tmp_path):
    """Examples that begin with a file name are written first, because others may extend them."""
    for named in EXAMPLES:
        if name := re.match(r"# (\w+\.yaml)\n", named):
            (tmp_path / name[1]).write_text(named)
    (tmp_path / "mine.yaml").write_text(example)
    _, study = read_study(str(tmp_path / "mine.yaml"))
    assert len(arms(study)) > 1


def test_every_import_and_function_that_is_shown_exists():
    code = "\n".join(blocks(STUDIES, "python"))
    exec("\n".join(line for line in code.splitlines() if re.match(r"(from|import) ", line)), {})
    assert set(re.findall(r"\barchlab\.(\w+)\(", code)) <= set(archlab.__all__)


def test_the_readme_counts_the_families_and_the_atlas():
    assert set(re.findall(r"(\d+)(?: published)? families", README)) == {str(len(FAMILIES))}
    assert set(re.findall(r"(\d+) published architectures", README)) == {str(len(entries()))}


PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("**/*.md"))]
LOOKS = r"archlab (?:draw|diff|explain|show) [^`\n>|]+"
"""A command that prints or draws at once."""
PLACEHOLDERS = r"\b[A-Z]{3,}\b|…|\[TOPIC\]|^archlab diff A B"


def commands() -> list[str]:
    """Return the commands in code blocks and sentences, without those that have placeholders."""
    found = [line for page in PAGES for line in re.findall(rf"(?:^|`)({LOOKS})", page.read_text("utf-8"), re.MULTILINE)]
    return sorted({line.strip() for line in found if not re.search(PLACEHOLDERS, line)})


@pytest.mark.parametrize("command", commands())
def test_what_is_shown_can_be_typed(command, tmp_path, monkeypatch, capsys):
    """A config named mine.yaml exists, because tutorials write it first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("base: tiny-llama\n")
    assert main(shlex.split(command, comments=True)[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("block", blocks(README, "console"))
def test_the_readme_shows_the_real_output(block, tmp_path, monkeypatch, capsys):
    """The lines of output are in order; `…` stands for omitted lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    command, *shown = block.splitlines()
    assert main(shlex.split(command.removeprefix("$ "))[1:]) == 0
    printed = iter([line.rstrip() for line in capsys.readouterr().out.splitlines()])
    assert [line for line in shown if line != "…" and line not in printed] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("README.md", "notebook.md")], ids=str)
def test_a_page_says_first_for_whom_it_is(page):
    _, first, *_ = page.read_text("utf-8").split("\n\n")
    assert re.match(r"This (page|tutorial) is (a reference )?for [\w ]+", first), first


def test_the_readme_is_a_landing_page():
    assert len(README.split()) <= 1200


def test_commands_to_type_are_found():
    assert {"archlab draw mine.yaml --out block.svg", "archlab explain gqa", "archlab explain muon"} <= {*commands()}
