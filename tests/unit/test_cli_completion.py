"""Completion in the shell: the scripts of `archlab completion`, run by the shells, and the values that they offer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import archlab
from archlab.cli import app
from archlab.config.io import presets

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _archlab; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def offered(capsys, *words: str) -> list[str]:
    """Return the values for the last word. The shells call `archlab __complete` in this way."""
    assert app.main(["__complete", *words]) == 0
    begin, *lines = capsys.readouterr().out.lstrip("\n").splitlines()
    assert begin == "\x1fbegin"
    values = [line.partition("\t")[0] for line in lines]
    return [value for value in values if value.startswith(words[-1].lstrip("="))]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("show tiny-lla", {"tiny-llama"}),
        ("show tiny-llama model.head.t", {"model.head.tied=", "model.head.transform."}),
        ("show tiny-llama model.head.ti", {"model.head.tied=", "model.head.tied=true", "model.head.tied=false"}),
        ("show tiny-llama model.norm.kind=s", {"model.norm.kind=scalenorm"}),
        ("show tiny-llama model.norm.kind = s", {"scalenorm"}),  # as bash splits it
        ("diff gpt-2 gpt-1-117m b.model.norm.kind=s", {"b.model.norm.kind=scalenorm"}),
        ("cost gpt-2 gpt-1", {"gpt-1-117m"}),
        ("cost gpt-2 train.see", {"train.seed=", "train.seed=0"}),
        ("cost gpt-2 --hardware mi300", {"mi300x"}),
        ("study run ladder-r", {"ladder-rates"}),
        ("explain swig", {"swiglu"}),
        ("doctor gg", {"gguf"}),
        ("show gpt-2 nothing=", set()),
    ],
)
def test_values(line, values, capsys):
    assert {*offered(capsys, *line.split())} >= values
    assert bool(offered(capsys, *line.split())) == bool(values)


def test_every_preset_is_offered(capsys):
    assert {*offered(capsys, "train", "")} >= presets().keys()


@pytest.mark.parametrize("field", ["model.norm.kind", "model.norm.placement", "model.mlp.activation", "train.schedule"])
def test_an_offered_value_can_be_set(field, capsys):
    values = offered(capsys, "show", "tiny-llama", f"{field}=")
    assert len(values) > 1
    for value in values:
        archlab.load_config("tiny-llama", value)


def test_paths(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    for name in ("mine.yaml", "notes.txt", ".hidden.yaml", "mine.py"):
        (tmp_path / name).touch()
    assert {"mine.yaml", "runs/"} <= {*offered(capsys, "show", "")}
    assert not {"notes.txt", ".hidden.yaml"} & {*offered(capsys, "show", "")}
    assert offered(capsys, "generate", "ru") == ["runs/", "runs/a/"], "two values, so that no space follows"
    assert "mine.py" in offered(capsys, "verify", "mi")
    assert offered(capsys, "generate", "no/such/folder/") == []


@pytest.fixture
def shell_words(tmp_path: Path, capsys):
    """Run a shell, with archlab's script for it, on a command line, and return the values that it offers."""

    def run(shell: str, *words: str) -> list[str]:
        assert app.main(["completion", shell]) == 0
        script = tmp_path / f"archlab.{shell}"
        script.write_text(capsys.readouterr().out)
        line = " ".join(words)
        code = {
            "bash": BASH.format(script=script, words=" ".join(f"'{word}'" for word in words)),
            "fish": f"source {script}; complete -C '{line}'",
        }[shell]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run([shell, "-c", code], capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert done.stderr == ""
        return [text.partition("\t")[0] for text in done.stdout.splitlines()]

    return run


SHELLS = [shell for shell in ("bash", "fish") if shutil.which(shell)]


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell, shell_words):
    assert {"cost", "convert"} <= {*shell_words(shell, "archlab", "co")}
    assert shell_words(shell, "archlab", "show", "tiny-lla") == ["tiny-llama"]
    assert shell_words(shell, "archlab", "list", "pre") == ["presets"]


def test_the_script_is_installed_for_a_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    for _ in range(2):
        assert app.main(["completion", "bash", "--install"]) == 0
    file = Path(capsys.readouterr().out.splitlines()[-1])
    assert file.is_relative_to(tmp_path)
    assert "complete -F _archlab archlab" in file.read_text()
    assert (tmp_path / ".bashrc").read_text().count(str(file)) == 2, "one line, which names it twice"


def test_an_unknown_shell_is_named(monkeypatch, capsys):
    monkeypatch.setattr("archlab.cli.completion.detect_shell", lambda: "powershell")
    assert app.main(["completion"]) == 2
    assert capsys.readouterr().err == "the shell is powershell; name one: archlab completion bash, zsh or fish\n"
