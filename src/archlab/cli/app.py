"""The `archlab` command: its verbs, each imported when it is used, and how errors end."""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from archlab.cli.usage import usage
from archlab.config.core.text import print_to_stderr
from archlab.config.core.trust import trusting
from archlab.console import console, visible_stdout
from archlab.errors import user_message
from archlab.interrupt import INTERRUPTED, was_interrupted
from archlab.version import __version__

VERBS = (
    ("demo", "study:demo", "Train the ladder from 2017's block to today's on this machine, and compare its steps."),
    ("list", "list:run", "What there is: presets, hardware, families and studies."),
    ("show", "configs:show", "A config with every default and derived value written out."),
    ("schema", "configs:schema", "The JSON schema of config or study files, for editors."),
    ("diff", "configs:diff", "What differs between two configs, field by field."),
    ("draw", "draw:run", "A block diagram of a config, as SVG or PNG."),
    ("explain", "explain:run", "A choice, a field or a word: its formula, why, who uses it, what it costs."),
    (
        "guide",
        "pages:guide",
        "The documents as a static site: tutorials, how-to's, a lecture, the ledger, a reference.",
    ),
    ("flatten", "configs:flatten", "A config as one PyTorch file, with nothing in it that this model does not use."),
    ("check", "check:run", "Whether the shape of a config is sound: what works badly, what is unusual."),
    ("size", "size:run", "A shape for a number of parameters, FLOPs or bytes, in a published family's proportions."),
    ("cost", "cost:run", "Parameters, FLOPs, KV cache and memory of a config, counted without building it."),
    ("hardware", "hardware:run", "A device that costs are computed for, or this machine, measured."),
    ("data", "data:run", "Text to token shards."),
    ("train", "train:run", "Train a model; run again, it resumes."),
    ("report", "pages:report", "Curves, spikes, probes and speed of runs as one page, also while they train."),
    ("eval", "evaluate:evaluate", "Bits per byte on held-out text."),
    ("lm-eval", "evaluate:lm_eval", "Score a model on tasks of lm_eval: a run, a published model or a hub id."),
    ("generate", "generate:run", "Continue a text with a trained model."),
    ("import", "exchange:import_folder", "Make a run folder of a published model."),
    ("export", "exchange:export_run", "Write a trained model as a Hugging Face folder, or for llama.cpp."),
    ("inspect", "exchange:inspect_folder", "What a run or a published model is, and whether it would load."),
    ("convert", "exchange:convert_heads", "Turn multi-head into grouped-query attention."),
    ("bench", "bench:app", "How fast a config trains or decodes on this machine."),
    ("profile", "bench:profile", "Where a training step's time goes here, against its FLOPs and bytes."),
    ("probe", "probe:run", "Gradients, stream and attention of a config before any training, layer by layer."),
    ("study", "study:app", "Run a comparison, or read one."),
    ("ledger", "ledger:run", "Claims about architecture, what was published, and what runs here found."),
)
"""Verb, its module in archlab.cli (a function or a cyclopts App), and its line in `archlab --help`."""

NO_NEGATIVES = Parameter(negative=())
"""No option has a `--no-` beside it. Apps below say so too, for the pages that cyclopts writes of them."""

HELP = """Compare architectures of decoder-only language models.

CONFIG is a preset's name (`archlab list presets`), a YAML file, a run folder, a Hugging Face folder or a hub id
(`organisation/name`, or `organisation/name@revision`); `key=value` after it overrides a field, as in
`model.norm.kind=layernorm`.
"""

TRUST_OPTION = "--trust"
TRUST_HELP = f"Add `{TRUST_OPTION}` to let the plug-ins run that a folder from elsewhere names."


def make_app() -> App:
    """The command with all its verbs, none of them imported yet."""
    app = App(
        name="archlab",
        help=HELP,
        help_epilogue=TRUST_HELP,
        version=__version__,
        default_parameter=NO_NEGATIVES,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        console=console(),
        suppress_keyboard_interrupt=False,
    )
    for index, (verb, target, summary) in enumerate(VERBS):
        app.command(f"archlab.cli.{target}", name=verb, help=summary, sort_key=index)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Exit code: 0 all went well; 1 a run diverged; 2 the user can mend it; 130 Ctrl-C, SIGTERM or SIGHUP; 141 the
    reader of a pipe left.
    """
    _prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app = make_app()
        others = _without_trust(app, words)
        with trusting(others != words), visible_stdout():
            code = app(others)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # Python flushes stdout once more on exit, which would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return _print_error(INTERRUPTED, 130)
    except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
        if was_interrupted():  # an import that a Ctrl-C broke off fails in its own way
            return _print_error(INTERRUPTED, 130)
        if message := _message(error):
            return _print_error(message)
        raise


def _without_trust(app: App, words: list[str]) -> list[str]:
    """Return the words without the option `--trust`. It stays in them if it is an option's value, or after `--`.

    It is no argument of the commands, because it has to hold while cyclopts imports and calls them.
    """
    if TRUST_OPTION not in words:
        return words
    end = words.index("--") if "--" in words else len(words)
    *_, command = app.parse_commands([word for word in words[:end] if word != TRUST_OPTION])[1]
    arguments = command.assemble_argument_collection() if command.default_command else ()
    with_value = {name for argument in arguments for name in argument.names if argument.token_count()[0] > 0}
    before = ["", *words]
    return [word for i, word in enumerate(words) if word != TRUST_OPTION or i > end or before[i] in with_value]


def _prepare_streams() -> None:
    """Give a closed output somewhere to write to, and ignore a terminal's claim to have no columns."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]


def _message(error: BaseException) -> str | None:
    """What to tell the user; None for a bug, whose traceback is wanted."""
    return usage(error) if isinstance(error, CycloptsError) else user_message(error)


def _print_error(message: str, code: int = 2) -> int:
    print_to_stderr(message)
    return code
