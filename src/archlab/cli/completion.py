"""The command `archlab completion`."""

from typing import Literal

from cyclopts.completion import ShellDetectionError, detect_shell

from archlab.cli.arguments import Flag
from archlab.console import write_exact
from archlab.errors import UserError


def run(shell: Literal["bash", "zsh", "fish"] | None = None, /, *, install: Flag = False) -> None:
    """Print a script that lets the shell complete commands, options, presets, studies, topics, fields and their values.

    Parameters
    ----------
    shell
        The shell. Default: the one that runs this command.
    install
        Write the script to the folder in which the shell looks for it, and print the file's name. For bash and zsh,
        ~/.bashrc or ~/.zshrc gets a line that loads it; zsh also needs `autoload -U compinit; compinit` there. New
        shells then complete after Tab.
    """
    from archlab.cli.app import make_app

    app, name = make_app(), shell or _this_shell()
    if install:
        print(app.install_completion(shell=name))
    else:
        write_exact(app.generate_completion(shell=name))


def _this_shell() -> Literal["bash", "zsh", "fish"]:
    try:
        found = detect_shell()
    except ShellDetectionError:
        found = "unknown"
    if found not in ("bash", "zsh", "fish"):
        raise UserError(f"the shell is {found}; name one: archlab completion bash, zsh or fish")
    return found
