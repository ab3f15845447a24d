"""The wheel: its files, its size and its metadata, as a package index and an empty environment see them."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from hatchling.build import build_wheel

import archlab

ROOT = Path(__file__).parents[2]
MOST_BYTES = 5_000_000
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_PACKED = {"docs/notebook.md", "docs/ladder.svg"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        name = build_wheel(str(folder))
    with ZipFile(folder / name) as file:
        yield file


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    return message_from_string(wheel.read(f"archlab-{archlab.__version__}.dist-info/METADATA").decode())


def below(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in files}


def test_it_holds_the_package_and_the_documents_and_nothing_else(wheel):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    documents = {f"docs/{name}" for name in below(ROOT / "docs")} - NOT_PACKED
    assert files == {f"archlab/{name}" for name in below(ROOT / "src" / "archlab") | documents}


@pytest.mark.parametrize(
    "name",
    [
        "archlab/py.typed",
        "archlab/docs/README.md",
        "archlab/library/presets/llama-3-8b.yaml",
        "archlab/evidence/results/ladder-rates.jsonl",
        "archlab/report/templates/guide.html.jinja",
        "archlab/ui/static/ui.js",
    ],
)
def test_it_holds_one_of_each_kind_of_file(wheel, name):
    assert name in wheel.namelist()


def test_it_is_small(wheel):
    assert sum(file.compress_size for file in wheel.infolist()) < MOST_BYTES


def test_it_installs_the_command(wheel):
    points = wheel.read(f"archlab-{archlab.__version__}.dist-info/entry_points.txt").decode()
    assert "[console_scripts]\narchlab = archlab.__main__:main" in points


def test_its_metadata_is_complete(metadata):
    assert metadata["Version"] == archlab.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])} == {
        "Homepage", "Documentation", "Source", "Issues", "Changelog",
    }  # fmt: skip
    assert len(metadata["Keywords"].split(",")) > 5
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    versions = [c.rpartition(" ")[2] for c in metadata.get_all("Classifier", []) if re.search(r":: 3\.\d+$", c)]
    assert versions == ["3.11", "3.12", "3.13"]


def test_its_description_has_no_link_that_only_works_in_the_repository(metadata):
    description = str(metadata.get_payload())
    assert "# archlab" in description
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_version_has_one_place():
    assert "version" in PROJECT["dynamic"]
    newest = re.search(r"(?m)^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text())
    assert newest is not None
    assert newest[1] == archlab.__version__


def search_for_placeholders(folder):
    *_, line = re.findall(r"(?m)^release:.*\n(?:\t.*\n)*?\t(git grep .*)$", (ROOT / "Makefile").read_text())
    return subprocess.run(["bash", "-c", line.replace("$$", "$")], cwd=folder, capture_output=True, text=True)


def test_a_release_is_refused_while_any_file_has_a_placeholder():
    found = search_for_placeholders(ROOT)
    assert found.returncode == 1
    files = {line.partition(":")[0] for line in found.stdout.splitlines()}
    assert files >= {"pyproject.toml", "CITATION.cff", "recipe/recipe.yaml", ".github/ISSUE_TEMPLATE/config.yml"}


def test_a_release_is_refused_if_git_fails(tmp_path):
    assert search_for_placeholders(tmp_path).returncode == 1
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert search_for_placeholders(tmp_path).returncode == 0


def test_the_conda_recipe_needs_the_same():
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == '${{ env.get("ARCHLAB_VERSION") }}', "one version, from one place"
    python, *packages = recipe["requirements"]["run"]
    assert python == f"python {PROJECT['requires-python']}"
    assert [name.replace(" ", "").replace("pytorch", "torch") for name in packages] == PROJECT["dependencies"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [name.replace(" ", "") for name in recipe["requirements"]["host"][2:]] == build
