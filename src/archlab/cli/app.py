"""The `archlab` command: its subcommands, each imported on first use, and its exit codes."""

import os
import sys
from collections.abc import Mapping, Sequence

from cyclopts import App, CycloptsError

from archlab.cli.help import NO_NEGATIVES, OPTIONS, HelpApp, verb_group
from archlab.cli.usage import usage
from archlab.config.core.text import print_to_stderr
from archlab.config.core.trust import trusting
from archlab.console import console, visible_stdout
from archlab.errors import UserError, user_message
from archlab.interrupt import INTERRUPTED, was_interrupted
from archlab.machine import versions

GROUPS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "Look": (
        ("list", "list:run", "List presets, hardware, families, studies and more."),
        ("show", "configs:show", "Show a config with all defaults and derived values."),
        ("draw", "draw:run", "Draw a block diagram of a model, as SVG, PNG or PDF."),
        ("diff", "configs:diff", "Show the fields in which two configs differ."),
        ("explain", "explain:run", "Explain an architecture choice, a field or a term."),
        ("guide", "pages:guide", "Write the documentation as a website."),
        ("ui", "ui:run", "Open the laboratory in a browser."),
        ("schema", "configs:schema", "Print the JSON schema of configs or studies."),
    ),
    "Cost": (
        ("cost", "cost:run", "Compute parameters, FLOPs, memory and best-case times."),
        ("size", "size:run", "Propose a model shape for a given budget."),
        ("check", "check:run", "Review the shape of a model before it runs."),
        ("hardware", "hardware:run", "Show a device, or measure this machine."),
        ("bench", "bench:app", "Measure training or decoding speed on this machine."),
        ("profile", "bench:profile", "Show where the time of a training step goes."),
    ),
    "Train": (
        ("data", "data:run", "Tokenize text into a data folder."),
        ("train", "train:run", "Train a model, or resume its training."),
        ("report", "pages:report", "Write the training curves of runs as a page."),
        ("probe", "probe:run", "Measure gradients and activations before training."),
        ("eval", "evaluate:evaluate", "Compute bits per byte on held-out text."),
        ("lm-eval", "evaluate:lm_eval", "Score a model on tasks of lm_eval."),
        ("generate", "generate:run", "Continue a text with a trained model."),
        ("fill", "fill:run", "Predict the masked tokens of a text."),
    ),
    "Compare": (
        ("demo", "study:demo", "Train and compare seven models, from 2017 to today."),
        ("study", "study:app", "Train several architectures and compare them."),
        ("ledger", "ledger:run", "Show published claims and what our runs found."),
    ),
    "Exchange": (
        ("import", "exchange:import_folder", "Make a run folder from a published model."),
        ("export", "exchange:export_run", "Write a run for transformers, vLLM or llama.cpp."),
        ("inspect", "exchange:inspect_folder", "Show what a model folder holds and whether it loads."),
        ("convert", "exchange:convert", "Change the architecture of a trained model."),
        ("flatten", "configs:flatten", "Print a model as a single PyTorch file."),
        ("verify", "verify:run", "Compare code that you wrote by hand with archlab's."),
    ),
    "Set up": (
        ("doctor", "doctor:run", "Show what is installed, and what features need."),
        ("completion", "completion:run", "Print a script that completes commands and values."),
    ),
}
"""Subcommands, grouped under the headings of `archlab --help`. Each row contains the subcommand's name, the place of
its function or cyclopts App in archlab.cli (`module:name`), and a summary for `archlab --help`."""

VERBS = tuple(row for rows in GROUPS.values() for row in rows)

USAGE = "Usage: archlab COMMAND [CONFIG] [model.norm.kind=layernorm]"

HELP = """Compare architectures of language models. CONFIG is a preset, a YAML file, a run
folder, a Hugging Face folder or a hub id. `COMMAND --help` shows examples.
"""

COMPLETE = "__complete"
"""Hidden command of cyclopts that the scripts of `archlab completion` call."""

TRUST_OPTION = "--trust"
TRUST_HELP = f"With `{TRUST_OPTION}`, archlab runs the plug-ins that a folder from somebody else names."


def make_app(kind: type[App] = HelpApp) -> App:
    """Return the App of `archlab` with all subcommands, which are imported on first use.

    `kind` is the class of the App. The command reference is generated with `kind=App`. The reason is that cyclopts
    documents only subcommands of the same class as their parent, and `archlab study` and `archlab bench` are of the
    class App.
    """
    app = kind(
        name="archlab",
        usage=USAGE,
        help=HELP,
        help_epilogue=TRUST_HELP,
        group_parameters=OPTIONS,
        version=_versions,
        version_format="plaintext",
        default_parameter=NO_NEGATIVES,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        console=console(),
        suppress_keyboard_interrupt=False,
    )
    for flag in (*app.help_flags, *app.version_flags):
        app[flag].show = False
    positions = {verb: position for position, (verb, *_) in enumerate(VERBS)}
    for index, (title, verbs) in enumerate(GROUPS.items()):
        group = verb_group(title, index)
        for verb, target, summary in verbs:
            app.command(f"archlab.cli.{target}", name=verb, help=summary, group=group, sort_key=positions[verb])
    return app


def _versions() -> str:
    return "\n".join(f"{name:<8}{value}" for name, value in versions().items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code.

    0: success. 1: a run diverged, or a check found a warning or a difference. 2: an error that the user can fix. 130:
    ended by Ctrl-C, SIGTERM or SIGHUP. 141: the program that reads the output has ended.
    """
    _prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app = make_app()
        if words[:1] == ["--version"] and words[1:]:  # cyclopts would ignore them
            raise UserError("--version takes no arguments; `archlab doctor` shows what is installed")
        if words[:1] == [COMPLETE]:  # its output contains control characters, which `visible_stdout` would replace
            return app(words) or 0
        untrusted = _without_trust(app, words)
        with trusting(untrusted != words), visible_stdout():
            code = app(untrusted)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # Python flushes stdout again on exit, which would raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _print_error(INTERRUPTED, 130)
    except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
        if was_interrupted():  # an import that Ctrl-C interrupts may raise any error
            return _print_error(INTERRUPTED, 130)
        if message := _message(error):
            return _print_error(message)
        raise


def _without_trust(app: App, words: list[str]) -> list[str]:
    """Return the words of the command line without the option `--trust`.

    A `--trust` that comes after `--`, or that is the value of an option (`--prompt --trust`), stays. The commands
    themselves do not declare `--trust`, because it must take effect before cyclopts imports the command.
    """
    if TRUST_OPTION not in words:
        return words
    end = words.index("--") if "--" in words else len(words)
    *_, command = app.parse_commands([word for word in words[:end] if word != TRUST_OPTION])[1]
    arguments = command.assemble_argument_collection() if command.default_command else ()
    with_value = {name for argument in arguments for name in argument.names if argument.token_count()[0] > 0}
    previous = ["", *words]
    return [word for i, word in enumerate(words) if word != TRUST_OPTION or i > end or previous[i] in with_value]


def _prepare_streams() -> None:
    """Open os.devnull in place of a closed stdout or stderr. Delete the environment variable COLUMNS if it is 0 or
    empty."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]


def _message(error: BaseException) -> str | None:
    """Return the message that the user sees for an error.

    Return None for a bug, whose traceback the user should see.
    """
    return usage(error) if isinstance(error, CycloptsError) else user_message(error)


def _print_error(message: str, code: int = 2) -> int:
    print_to_stderr(message)
    return code
