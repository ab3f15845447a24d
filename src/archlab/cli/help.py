"""Help pages: the subcommands of `archlab` in groups, and examples of use below the options of each command."""

import inspect
import re
from collections.abc import Iterable

from cyclopts import App, Argument, Group, Parameter
from cyclopts.help import HelpPanel, format_usage
from rich.console import Console, ConsoleOptions
from rich.table import Table

from archlab.cli.examples import EXAMPLES
from archlab.console import console as plain_console

NO_NEGATIVES = Parameter(negative=())
"""Parameter settings of all commands: a flag such as `--json` has no opposite `--no-json`."""

OPTIONS = "Options"
"""Heading of the options in a help page."""

_GROUP_WIDTH, _VERB_WIDTH = 8, 10
"""Widths, in columns, of the widest group name and of the widest subcommand name."""


class HelpApp(App):
    """App whose `--help` shows the whole docstring of a command, followed by examples of its use."""

    def help_print(self, tokens: str | Iterable[str] | None = None, *, console: Console | None = None) -> None:
        """Print the help page of the command that `tokens` name. None means the words in sys.argv."""
        words, apps, _ = self.parse_commands(tokens)
        command = apps[-1]
        show_docstring(command)
        before = command.usage, command.help_epilogue
        if command.default_command is not None:
            command.usage = with_names(f"Usage: {format_usage(self, words).plain.strip()}", command)
            command.help_epilogue = None if _reads_folders(command) else ""  # the text about --trust
        super().help_print(tokens, console=console)
        command.usage, command.help_epilogue = before  # the command reference generates its own usage
        for line in example_lines(" ".join(words)):
            self.console.print(line, soft_wrap=True)


def verb_with_subcommands(name: str) -> App:
    """Return the App of a command with subcommands, such as `study`.

    The App gets the settings of `archlab` again, because cyclopts ignores the parent's settings when it generates the
    command reference.
    """
    return App(name=name, console=plain_console(), default_parameter=NO_NEGATIVES, group_parameters=OPTIONS)


def show_docstring(command: App) -> None:
    """Make the help page of a command show the whole docstring instead of the one-line summary."""
    if command.default_command is not None:
        command.help = None


def with_names(usage: str, command: App) -> str:
    """Return the usage of a command with the names of its optional arguments, in place of ARGS."""
    names = [
        f"[{one.name}...]" if one.field_info.kind is one.field_info.VAR_POSITIONAL else f"[{one.name}]"
        for one in _positional(command)
        if not one.required
    ]
    return re.sub(r"\[ARGS(\.\.\.)?\]", " ".join(names), usage, count=1)


def _reads_folders(command: App) -> bool:
    """Return whether a command opens folders, as the help of its arguments or its own help says."""
    texts = [one.parameter.help or "" for one in _positional(command)]
    return any("folder" in text for text in texts) or "current folder" in (
        inspect.getdoc(command.default_command) or ""
    )


def _positional(command: App) -> list[Argument]:
    if command.default_command is None:
        return []
    return [one for one in command.assemble_argument_collection(parse_docstring=True) if one.index is not None]


def example_lines(command: str) -> list[str]:
    """Return the lines that show the examples of a command, such as `study run`. The list is empty if it has no
    examples."""
    lines = ["", "Examples:"] if command in EXAMPLES else []
    for example, description in EXAMPLES.get(command, ()):
        lines += [f"  # {description}", f"  {example}"]
    return lines


def verb_group(title: str, position: int) -> Group:
    """Return a group of subcommands. The help page of `archlab` shows each of them in one line."""
    return Group(title, help_formatter=_print_verbs, sort_key=position)


def _print_verbs(console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_GROUP_WIDTH)
    table.add_column(min_width=_VERB_WIDTH)
    table.add_column()
    for position, entry in enumerate(panel.entries):
        title = "" if position else panel.title
        table.add_row(title, " ".join(entry.positive_names), entry.description)
    console.print(table)
