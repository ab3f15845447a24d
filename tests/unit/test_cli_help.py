"""Help pages: verbs in groups, examples for every command; and long output in a pager."""

import io
import shlex
import sys
from pathlib import Path

import pytest

from archlab.cli import app
from archlab.cli.examples import EXAMPLES
from archlab.cli.terminal import long_output
from archlab.console import collected_stdout
from archlab.errors import UserError

ALL = [(command, typed) for command, rows in EXAMPLES.items() for typed, _ in rows]
QUICK = {
    "list", "show", "draw", "diff", "explain", "schema", "cost", "size", "check", "hardware", "flatten", "ledger",
    "study", "study list", "study show", "study new",
}  # fmt: skip
NOT_QUICK = ("--measure", "study run")
"""Parts of examples that train or measure."""


def commands() -> list[str]:
    """All verbs, and the commands of `study` and `bench`."""
    made = app.make_app()
    below = {verb: [name for name in made[verb] if not name.startswith("-")] for verb, *_ in app.VERBS}
    return [command for verb, names in below.items() for command in (verb, *(f"{verb} {name}" for name in names))]


def shown(capsys, *arguments):
    assert app.main(arguments) == 0
    return capsys.readouterr().out


def test_the_help_of_archlab_fits_one_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys, "--help").splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for group, verbs in app.GROUPS.items():
        for position, (verb, _, summary) in enumerate(verbs):
            heading = f"{'' if position else group:<8}  {verb:<10}  {summary}"
            assert heading in text, "one line each, the group before its first verb"


def test_every_command_has_examples():
    assert {*EXAMPLES} == {*commands()}
    assert {len(rows) for rows in EXAMPLES.values()} == {2, 3}


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_help_of_a_command_ends_with_its_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys, *command.split(), "--help").splitlines()
    assert max(map(len, lines)) <= 80
    expected = [line for typed, does in EXAMPLES[command] for line in (f"  # {does}", f"  {typed}")]
    assert lines[-len(expected) - 1 :] == ["Examples:", *expected]
    assert "ARGS" not in lines[0]
    assert all(typed.startswith(f"archlab {command}") for typed, _ in EXAMPLES[command])


@pytest.mark.parametrize(
    ("command", "usage"), [("cost", "CONFIG [MORE...]"), ("doctor", "[EXTRA...]"), ("list", "[WHAT]")]
)
def test_the_usage_names_optional_arguments(command, usage, capsys):
    assert shown(capsys, command, "--help").splitlines()[0] == f"Usage: archlab {command} [OPTIONS] {usage}"


@pytest.mark.parametrize(
    ("command", "reads_folders"),
    [
        ("show", True),
        ("study run", True),
        ("ui", True),
        ("doctor", False),
        ("schema", False),
        ("guide", False),
        ("demo", False),
    ],
)
def test_trust_stands_where_folders_are_read(command, reads_folders, capsys):
    assert ("With --trust" in shown(capsys, *command.split(), "--help")) == reads_folders


@pytest.mark.parametrize(("command", "typed"), ALL)
def test_an_example_can_be_typed(command, typed):
    """Cyclopts accepts its arguments and options."""
    _, bound, ignored = app.make_app().parse_args(words_of(typed), exit_on_error=False, print_error=False)
    assert bound is not None
    assert ignored == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "typed",
    sorted({typed for command, typed in ALL if command in QUICK and not any(part in typed for part in NOT_QUICK)}),
)
def test_a_quick_example_works(typed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("base: tiny-llama\n")
    if "--out mine.yaml" in typed:
        Path("mine.yaml").unlink()
    assert app.main(words_of(typed)) in ((0, 1) if "--strict" in typed else (0,)), capsys.readouterr().err
    assert capsys.readouterr().out


def words_of(typed: str) -> list[str]:
    """The words after `archlab`, without a redirection at the end."""
    archlab, *words = shlex.split(typed.partition(" > ")[0])
    assert archlab == "archlab"
    return words


# --- the pager ---------------------------------------------------------------------------------------------


def on_a_terminal(monkeypatch, tmp_path):
    """Stdout of a terminal with ten lines, whose pager writes into the file `paged`."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    keyboard = io.StringIO()
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.chdir(tmp_path)
    for name, value in {"COLUMNS": "80", "LINES": "10", "TERM": "xterm", "PAGER": "sh -c 'cat > paged'"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ARCHLAB_PAGER", raising=False)
    return stream


def test_long_output_goes_to_the_pager(monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch, tmp_path)
    assert app.main(["explain"]) == 0
    assert terminal.getvalue() == ""
    assert Path("paged").read_text("utf-8").count("\n") > 10


@pytest.mark.parametrize(
    "words",
    [["schema"], ["size", "--params", "1B"], ["hardware", "h100"], ["probe", "tiny-llama", "model.n_layers=2"]],
)
def test_commands_with_long_output_use_the_pager(words, monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch, tmp_path)
    assert app.main(words) == 0
    assert terminal.getvalue() == ""
    assert Path("paged").read_text("utf-8").count("\n") >= 10


def test_output_that_fits_is_printed(monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch, tmp_path)
    monkeypatch.setenv("LINES", "1000")
    assert app.main(["explain"]) == 0
    assert terminal.getvalue().count("\n") > 10
    assert not Path("paged").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("ARCHLAB_PAGER", ""), ("ARCHLAB_PAGER", "cat"), ("PAGER", "cat"), ("PAGER", "no-such-pager -x"), ("PAGER", "'"),
     ("TERM", "dumb")],
)  # fmt: skip
def test_the_pager_can_be_turned_off(name, value, monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch, tmp_path)
    monkeypatch.setenv(name, value)
    assert app.main(["explain"]) == 0
    assert terminal.getvalue().count("\n") > 10
    assert not Path("paged").exists()


def test_json_and_pipes_have_no_pager(monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch, tmp_path)
    assert app.main(["explain", "--json"]) == 0
    assert terminal.getvalue().startswith("{")
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    assert app.main(["explain"]) == 0
    assert not Path("paged").exists()


def test_an_error_leaves_what_was_printed_before_it(monkeypatch, tmp_path):
    terminal = on_a_terminal(monkeypatch, tmp_path)

    @long_output
    def verb() -> None:
        print("before")
        raise UserError("wrong")

    with pytest.raises(UserError, match="wrong"):
        verb()
    assert terminal.getvalue() == "before\n"


def test_nothing_commands_the_pager():
    with collected_stdout() as collected:
        print("\x1b[2J")
    assert collected.getvalue() == "\\u001b[2J\n"
