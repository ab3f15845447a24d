"""`archlab doctor`: what it says about packages, extras, the compiler and the GPU."""

import json
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

from archlab.cli import app, doctor
from archlab.extras import EXTRAS


@pytest.fixture
def without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def findings(capsys, *extras: str) -> tuple[int, dict[str, dict[str, str]]]:
    code = app.main(["doctor", *extras, "--json"])
    return code, {found["part"]: found for found in json.loads(capsys.readouterr().out)["findings"]}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions that `archlab doctor` finds, instead of those that are installed."""
    versions: dict[str, str] = {}

    def find(name: str) -> str:
        if versions.get(name) == "":
            raise PackageNotFoundError(name)
        return versions.get(name) or version(name)

    monkeypatch.setattr(doctor, "version", find)
    return versions


def test_every_part_is_listed(capsys, without_compiling):
    code, found = findings(capsys)
    assert code == 0
    assert found.keys() == {"packages", *EXTRAS, "compiler", "GPU"}
    assert found["packages"]["state"] == "ok"
    assert found["gguf"] == {
        "part": "gguf", "state": "ok", "feature": "GGUF files", "details": f"gguf {version('gguf')}",
    }  # fmt: skip


def test_a_missing_extra(capsys, installed, without_compiling):
    installed["gguf"] = ""
    code, found = findings(capsys)
    assert (code, found["gguf"]["state"], found["gguf"]["details"]) == (0, "missing", "no gguf")
    assert findings(capsys, "parquet", "gguf")[0] == 1, "the user needs it"
    assert findings(capsys, "parquet")[0] == 0
    assert app.main(["doctor"]) == 0
    assert "pip install 'archlab[" in capsys.readouterr().out
    installed["datasets"] = ""
    assert app.main(["doctor", "gguf"]) == 1
    assert "pip install 'archlab[gguf]'" in capsys.readouterr().out


def test_an_extra_that_is_too_old(capsys, installed, without_compiling):
    installed["gguf"] = "0.10.0"
    _, found = findings(capsys)
    assert found["gguf"]["details"] == "gguf is 0.10.0, but >=0.19 is needed"


def test_a_required_package_that_is_missing(capsys, installed):
    """torch may then not be importable, so the compiler and the GPU are not tried."""
    installed["scipy"] = ""
    code, found = findings(capsys)
    assert code == 1
    assert found["packages"]["details"] == "no scipy; run: pip install archlab"
    assert found.keys() == {"packages", *EXTRAS}


def test_an_unknown_extra(capsys):
    assert app.main(["doctor", "ggufs"]) == 2
    assert capsys.readouterr().err.startswith("unknown extra 'ggufs'; did you mean gguf? allowed: ")


def test_without_a_compiler(capsys, monkeypatch):
    monkeypatch.setattr("archlab.model.graphs.has_compiler", lambda: False)
    _, found = findings(capsys)
    assert found["compiler"]["state"] == "missing"
    assert "install g++" in found["compiler"]["details"]


def test_a_compiler_that_fails(capsys, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("command failed\n\nomp.h: no such file\n")

    monkeypatch.setattr(torch, "compile", fails)
    _, found = findings(capsys)
    assert (found["compiler"]["state"], found["compiler"]["details"]) == ("broken", "omp.h: no such file")


def test_gpus(capsys, monkeypatch, without_compiling):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert findings(capsys)[1]["GPU"]["state"] == "missing"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ones = torch.ones

    def on_an_unusable_gpu(*shape, device=None):
        if device == "cuda":
            raise RuntimeError("no kernel image is available for execution on the device")
        return ones(*shape)

    monkeypatch.setattr(torch, "ones", on_an_unusable_gpu)
    found = findings(capsys)[1]["GPU"]
    assert found["state"] == "broken"
    assert found["details"].startswith("no kernel image")
