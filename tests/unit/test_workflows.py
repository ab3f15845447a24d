"""Workflows: versions that are tested, what test jobs run, and who may publish."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from archlab.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"]]


def steps(name: str, job: str) -> list[dict[str, Any]]:
    return WORKFLOWS[name]["jobs"][job]["steps"]


def matrix(job: str) -> dict[str, list[str]]:
    return WORKFLOWS["tests"]["jobs"][job]["strategy"]["matrix"]


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_a_job_runs_only_targets_of_the_makefile(name, job):
    """So that everybody can run the same at home."""
    targets = re.findall(r"(?m)^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text())
    runs = [step["run"].split() for step in steps(name, job) if "run" in step]
    assert [words for words in runs if words[0] != "make" or words[1] not in targets] == []


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_actions_have_a_major_version(name, job):
    used = [step["uses"] for step in steps(name, job) if "uses" in step]
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@(v\d+|release/v\d+)", action)] == []


def test_every_python_and_the_oldest_torch_are_tested():
    classifiers = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert matrix("test")["python"] == classifiers
    assert matrix("test")["os"] == ["ubuntu-latest", "macos-latest"]
    assert matrix("test")["constraints"] == ["constraints.txt", ""]
    (oldest,) = (text.partition(">=")[2] for text in PROJECT["dependencies"] if text.startswith("torch>="))
    (pinned,) = re.findall(r"(?m)^torch==(.*)$", (ROOT / "constraints.txt").read_text())
    assert pinned.startswith(oldest)


def test_every_extra_is_tested_alone():
    assert sorted(matrix("extra")["extra"]) == sorted({*EXTRAS, "bench"})


def test_only_what_passes_the_tests_is_published():
    assert WORKFLOWS["release"]["jobs"]["publish"]["needs"] == ["build", "test"]
    assert [step["run"] for step in steps("release", "test") if "run" in step] == [
        "make test CONSTRAINTS=constraints.txt"
    ]


def test_only_jobs_with_an_environment_get_a_token():
    """Trusted publishing needs the token. No job that installs or runs other packages has it."""
    for workflow in WORKFLOWS.values():
        assert workflow["permissions"] == {"contents": "read"}
    allowed = {(n, j) for n, j in JOBS if "permissions" in WORKFLOWS[n]["jobs"][j]}
    assert allowed == {("docs", "deploy"), ("release", "publish")}
    for name, job in allowed:
        assert WORKFLOWS[name]["jobs"][job]["permissions"]["id-token"] == "write"
        assert WORKFLOWS[name]["jobs"][job]["environment"]["name"] == {"docs": "github-pages", "release": "pypi"}[name]
        assert not any("run" in step for step in steps(name, job))
