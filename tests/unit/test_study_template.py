"""The file that `archlab study new` writes."""

from pathlib import Path

import pytest

from archlab.cli.app import main
from archlab.config.core.yaml_text import parse_yaml, read_yaml
from archlab.study.authoring import EXAMPLE, template
from archlab.study.design import arms
from archlab.study.schema import StudyConfig
from archlab.study.study_file import read_study


@pytest.mark.slow
def test_it_is_a_study_that_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    assert main(["study", "new", "--out", str(file)]) == 0
    assert len(arms(read_study(str(file))[1])) == 2
    capsys.readouterr()
    assert main(["study", "show", str(file)]) == 0
    assert "2 arms, 3 seeds each" in capsys.readouterr().out
    assert main(["study", "new"]) == 0
    assert capsys.readouterr().out == file.read_text()


def test_every_field_stands_there_once_with_what_the_schema_says() -> None:
    text = template()
    plain = " ".join(text.replace("#", " ").split())
    for name, field in StudyConfig.model_fields.items():
        assert " ".join(str(field.description).split()) in plain, name
        begin = (f"{name}:",) if name in EXAMPLE else (f"# {name}: ",)
        assert sum(line.startswith(begin) for line in text.splitlines()) == 1, name
    assert parse_yaml(text, "text") == EXAMPLE


def test_any_text_comes_back() -> None:
    hard = {
        **EXAMPLE,
        "question": "Is it: yes, {no} # or 'null'?" + " And then?" * 12,
        "claim": "null",
        "seeds": [0, 1],
    }
    assert parse_yaml(template(hard), "text") == hard


def test_what_is_a_comment_is_the_default() -> None:
    """Removing the # of a comment changes nothing."""
    default = StudyConfig.model_validate(EXAMPLE)
    for name, field in StudyConfig.model_fields.items():
        line = next((line for line in template().splitlines() if line.startswith(f"# {name}: ")), "")
        if name not in EXAMPLE and not field.is_required():
            values = {**EXAMPLE, **parse_yaml(line.removeprefix("# "), name)}
            assert getattr(StudyConfig.model_validate(values), name) == getattr(default, name), name


def test_it_begins_with_another_study(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert main(["study", "new", "ladder", "--out", str(file)]) == 0
    assert read_study(str(file))[1] == read_study("ladder")[1]
    assert list(read_yaml(file)["arms"]) == list(read_study("ladder")[1].arms)


def test_it_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    assert main(["study", "new", "--out", str(file)]) == 2
    assert "exists; name a new file" in capsys.readouterr().err
    assert file.read_text() == "mine"
