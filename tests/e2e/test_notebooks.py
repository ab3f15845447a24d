"""Notebooks in examples/, executed in a real kernel. Their outputs contain the numbers of the commands."""

import csv
import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stdout
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import nbformat
import pytest
from lab import ARCHLAB
from nbclient import NotebookClient
from nbformat import NotebookNode

from archlab.cli.app import main

EXAMPLES = Path(__file__).parents[2] / "examples"


class Executed:
    """A notebook whose cells have all been executed without an error."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
        NotebookClient(
            self.notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()

    def outputs(self, code: str = "") -> Iterator[NotebookNode]:
        """Yield the outputs of the cells that contain the code."""
        for cell in self.notebook.cells:
            if cell.cell_type == "code" and code in cell.source:
                yield from cell.outputs

    def displayed(self, code: str) -> Mapping[str, str]:
        """Return the last displayed value of the cell that contains the code, by MIME type."""
        *_, last = (output.data for output in self.outputs(code) if "data" in output)
        assert "<script" not in last["text/html"]
        return last

    def text(self, code: str) -> str:
        """Return the text of the displayed HTML, with single spaces."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.displayed(code)["text/html"])).split())

    def printed(self, code: str) -> str:
        return "".join(output.text for output in self.outputs(code) if output.output_type == "stream")

    def command(self, *words: str) -> str:
        """Return the output of a command in the folder of the notebook."""
        out = io.StringIO()
        with chdir(self.folder), redirect_stdout(out):
            assert main(words) == 0
        return out.getvalue()

    def data(self, *words: str) -> Any:
        return json.loads(self.command(*words, "--json"))


@pytest.fixture
def executed(request: pytest.FixtureRequest, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Executed:
    """The kernel is that of this Python, and not one that the user has installed under the same name."""
    for key, value in {
        "ARCHLAB_CACHE": str(cache), "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_PREFER_ENV_PATH": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PATH", str(ARCHLAB.parent), prepend=":")
    (tmp_path / "notebook").mkdir()
    return Executed(request.param, tmp_path / "notebook")


def check_study(executed: Executed, code: str, folder: str, reference: str) -> Any:
    """The shown differences are those of the command, and the means of the differences in the table of runs. Return the
    data of the command."""
    shown = executed.text(code)
    with (executed.folder / folder / "runs.csv").open() as file:
        scores = {(row["arm"], row["seed"]): float(row["bits_per_byte"]) for row in csv.DictReader(file)}
    summary = executed.data("study", "report", folder)
    compared = {arm["name"]: arm["comparison"] for arm in summary["arms"] if arm["comparison"]}
    assert {arm for arm, _ in scores} == {*compared, reference}
    for arm, comparison in compared.items():
        differences = [scores[arm, seed] - scores[reference, seed] for name, seed in scores if name == arm]
        assert len(differences) == 3
        numbers = f"{mean(differences):.3f} [{comparison['low']:.3f}, {comparison['high']:.3f}]"
        assert shown.count(numbers) >= 2, "in the forest plot and in the table"
        assert comparison["verdict"] in shown
    assert executed.displayed(code)["text/html"].count("<svg") == 1
    assert summary["question"] in shown
    assert f"{len(scores)}/{len(scores)}" in executed.printed(code)
    return summary


def numbers_of(text: str) -> set[str]:
    return {word for word in text.split() if re.search(r"\d", word)}


@pytest.mark.parametrize("executed", ["replay_a_claim"], indirect=True)
def test_a_claim_is_replayed(executed: Executed) -> None:
    explained, entry = executed.command("explain", "swiglu"), executed.data("ledger", "gates")["claims"][0]
    intervals = re.findall(r"\[-[\d.]+, -?[\d.]+\]", " ".join(explained.split()))
    assert intervals
    assert [interval for interval in intervals if interval not in executed.text("archlab.explain")] == []
    summary = check_study(executed, "archlab.run_study", "gates-small", "relu")
    assert f"verdict: {entry['found'][0]['verdict']}\n" in executed.printed("archlab.ledger")
    assert " ".join(entry["claim"]["caveat"].split()) in " ".join(executed.printed("archlab.ledger").split())
    detectable = summary["arms"][-1]["comparison"]["smallest_effect"]
    assert f"SwiGLU: {detectable:.3f} bits" in executed.printed("smallest_effect")
    check_streams(executed)


@pytest.mark.parametrize("executed", ["your_own_attention"], indirect=True)
def test_an_attention_of_ones_own_is_compared(executed: Executed) -> None:
    (executed.folder / "mine.yaml").write_text(
        "base: mini-llama\nplugins: [softplus_attention.py]\nmodel: {attention: {kind: softplus}}\n"
    )
    picture = executed.displayed("archlab.draw")
    assert picture["image/svg+xml"].startswith("<svg")
    assert picture["text/html"] == picture["image/svg+xml"]
    assert "softplus attention" in executed.text("archlab.draw")
    costs = numbers_of(executed.command("cost", "mini-llama", "mine.yaml"))
    assert "1.02x" in costs
    assert costs - {*executed.text("archlab.cost").split()} == set()
    check_study(executed, "archlab.run_study", "softplus", "softmax")
    check_streams(executed)


@pytest.mark.parametrize("executed", ["shape_and_price_a_1b"], indirect=True)
def test_a_shape_is_priced(executed: Executed) -> None:
    parameters = executed.data("cost", "mine.yaml")["parameters"]["total"]
    assert abs(parameters / 1e9 - 1) < 0.01
    assert f"{parameters:,} parameters" in executed.printed("archlab size")
    assert f"{parameters:,} parameters" in executed.text('load_config("mine.yaml")\nconfig')
    *_, verdict = executed.command("check", "mine.yaml").strip().split("\n")
    assert verdict.removeprefix("mine.yaml: ") in executed.text("archlab.check")
    variants = {
        "mine": "",
        "2 KV heads": "model: {attention: {n_kv_heads: 2}}",
        "windows": "model: {layers: {local: {attention.window: 1024}, full: {}, pattern: [local, local, local, full]}}",
    }
    files = [f"{name.replace(' ', '-')}-again.yaml" for name in variants]
    for file, values in zip(files, variants.values(), strict=True):
        (executed.folder / file).write_text(f"base: mine.yaml\n{values}\n")
    costs = numbers_of(executed.command("cost", *files, "--context", "8192", "--batch", "64")) - {*files}
    assert {"0.25x", "0.31x"} <= costs
    assert costs - {*executed.text("archlab.cost(").split()} == set()
    for name, file in zip(variants, files, strict=True):
        room = executed.data("cost", file, "--context", "8192", "--batch", "64", "--hardware", "h100")["room"]
        assert f"{name}: {room['texts']:,} sequences of 8,192 tokens" in executed.printed("kv_cache_bytes")
    assert "fits in 79.6 GiB" in executed.printed("--devices 1")
    check_streams(executed)


def check_streams(executed: Executed) -> None:
    """A notebook shows stderr like an error."""
    assert [output.text for output in executed.outputs() if output.get("name") == "stderr"] == []


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_finds_archlab_without_its_script(file: Path) -> None:
    lines = [line for cell in nbformat.read(file, as_version=4).cells for line in cell.source.splitlines()]
    assert [line for line in lines if re.match(r"\s*[!%]\s*(sh )?archlab", line)] == []


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_is_stored_without_outputs(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [*chain.from_iterable(cell.outputs for cell in code)] == []
    assert {cell.execution_count for cell in code} == {None}
    assert len(notebook.cells) <= 12
