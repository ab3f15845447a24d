"""The command `archlab verify`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from archlab.cli import app

FILE = """
import torch
from torch import nn
from roots import root

class Norm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps, self.size = eps, nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x / root(x.square().mean(-1, keepdim=True) + self.eps) * self.size

class Sum(Norm):
    def forward(self, x):
        return x / root(x.square().sum(-1, keepdim=True) + self.eps) * self.size
"""
NARROW = ("cs336", "model.d_model=32", "--part", "norm")


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    Path("roots.py").write_text("def root(x): return x.sqrt()\n")
    Path("broken.py").write_text("1 / 0\n")


def test_equal_code_ends_with_0(capsys):
    assert app.main(["verify", "mine.py:Norm", *NARROW, "--argument", "width=32", "--map", "size=weight"]) == 0
    assert "Norm equals archlab's norm" in capsys.readouterr().out


def test_different_code_ends_with_1_and_json_names_the_mistake(capsys):
    assert app.main(["verify", "mine.py:Sum", *NARROW, "--argument", "width=32", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is False
    assert [mistake["name"] for mistake in found["mistakes"]] == ["rmsnorm-sum"]
    assert found["parameters"] == {"size": ["weight"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine.py:Nrm", *NARROW], "mine.py: defines no 'Nrm'; did you mean Norm?"),
        (["mine.py", *NARROW], "mine.py: allowed: FILE.py:NAME"),
        (["other.py:Norm", *NARROW], "other.py: no such file"),
        (["broken.py:Norm", *NARROW], "broken.py: cannot be imported: ZeroDivisionError"),
        (["mine.py:Norm", *NARROW], "Norm: argument 'width' has no known meaning"),
        (["mine.py:Norm", *NARROW, "--map", "size"], "--map size: has no equals sign; allowed: NAME=VALUE"),
        (["mine.py:Norm", *NARROW, "--argument", "width=16"], "size [16]"),
    ],
)
def test_bad_input_ends_with_2(words, message, capsys):
    assert app.main(["verify", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_command_does_not_load_torch_before_it_runs():
    code = "import sys, archlab.cli.verify; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
