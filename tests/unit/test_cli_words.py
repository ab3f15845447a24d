"""Words that people try as commands lead to the command that does it."""

from importlib import import_module

import pytest

from archlab.cli import app
from archlab.cli.usage import WORDS

WAYS = sorted({command for ways in WORDS.values() for command, _ in ways})


def said_of(capsys, *arguments):
    assert app.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


@pytest.mark.parametrize("word", [*WORDS, "finetunes", "Chat"])
def test_a_word_is_answered_by_commands_in_80_columns(capsys, word):
    group, _, name = word.partition("-") if word.startswith("study-") else ("", "", word)
    said = said_of(capsys, *([group] if group else []), name, "gpt-2")
    assert said[0] == f"unknown command {name!r}; use:"
    assert len(said) > 1
    assert all(line.startswith("  archlab ") and len(line) <= 80 for line in said[1:])


def test_the_nearer_of_a_command_and_a_word_is_suggested(capsys):
    """`chta` is nearer to chat than to the command schema; `chekc` is nearest to the command check."""
    assert said_of(capsys, "chta") == ["unknown command 'chta'; use:", *said_of(capsys, "chat")[1:]]
    assert "did you mean check?" in said_of(capsys, "chekc")[0]
    assert "did you mean schema?" in said_of(capsys, "shcema")[0]


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("finetune", "import"), ("chat", "generate"), ("serve", "export"), ("plot", "report"), ("compare", "diff"),
        ("compare", "study run"), ("download", "import"), ("resume", "train"), ("evaluate", "eval"),
        ("tokenize", "data"), ("params", "cost"), ("visualize", "draw"), ("info", "show"),
    ],
)  # fmt: skip
def test_each_word_leads_to_the_command_that_does_it(capsys, word, command):
    assert any(line.startswith(f"  archlab {command} ") for line in said_of(capsys, word))


@pytest.mark.parametrize("way", WAYS)
def test_every_command_that_is_named_can_be_given(way):
    """Cyclopts accepts it with each argument and option."""
    made = app.make_app()
    if way.startswith("--"):
        assert way in (*made.help_flags, *made.version_flags)
    else:
        command, bound, ignored = made.parse_args(way.split(), exit_on_error=False, print_error=False)
        assert command.__module__.startswith("archlab.cli.")
        assert bound.arguments or way in ("list", "ledger")
        assert ignored == {}


def test_no_word_is_a_command():
    groups = {verb: import_module(f"archlab.cli.{target.partition(':')[0]}") for verb, target, _ in app.VERBS}
    commands = {*groups, *(f"study-{name}" for name in groups["study"].app if not name.startswith("-"))}
    assert commands.isdisjoint(WORDS)


def test_a_name_that_is_near_comes_before_a_word_that_is(capsys):
    (said,) = said_of(capsys, "trian")
    assert said.startswith("unknown command 'trian'; did you mean train? allowed: list, ")
    (said,) = said_of(capsys, "xyzzy")
    assert said.startswith("unknown command 'xyzzy'; allowed: list, ")
