"""The commands `archlab report` and `archlab guide`, which write HTML pages."""

import re
import time
from pathlib import Path

from cyclopts import App

import archlab
from archlab.cli.app import TRUST_HELP, VERBS, make_app
from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.help import example_lines, show_docstring, with_names
from archlab.cli.terminal import print_json, print_table
from archlab.config.core.text import note
from archlab.errors import UserError


def report(
    run: Path, /, *more: Path, out: Path | None = None, live: AtLeastOne | None = None, json: Flag = False
) -> None:
    """Write the curves, spikes, probes and speed of one or more runs as a page, also during training.

    Parameters
    ----------
    run
        A run folder.
    more
        More run folders to compare.
    out
        The page to write. Default: report.html in the folder of the first run.
    live
        Write the page again after this number of seconds, until all runs have ended or you press Ctrl-C. Browsers
        reload it.
    json
        Print the state of each run as JSON.
    """
    if json and live is not None:
        raise UserError("--json and --live cannot be combined; use one of them")
    if json and out is not None:
        raise UserError("--json and --out cannot be combined, because JSON is printed; use one of them")
    from archlab.report.run.page import COLUMNS, run_rows, standing, write_runs
    from archlab.report.run.watched import watch

    paths = [run, *more]
    runs = watch(paths)
    if json:
        print_json(standing(runs))
        return
    page = (out or run / "report.html").absolute()
    if live is not None:
        note(f"{page} is updated every {live} s until all runs have ended; press Ctrl-C to stop")
        while not all(watched.summary for watched in runs):
            write_runs(runs, page, refresh_seconds=live)
            time.sleep(live)
            runs = watch(paths)
    write_runs(runs, page)
    print_table(COLUMNS, run_rows(runs), right=COLUMNS[2:])
    print(f"report: {page}")


def guide(*, out: Path) -> None:
    """Write the documentation as a static website: tutorials, how-to pages, a lecture and a reference.

    Parameters
    ----------
    out
        The folder to write. Its first page is index.html.
    """
    from archlab.report.drawings.pictures import pictures
    from archlab.report.guide.reference import python_api
    from archlab.report.guide.site import write_guide

    print(write_guide(out, pictures(), commands(), python_api(archlab)))


def commands() -> str:
    """Return the help pages of all commands as Markdown.

    There is no table of contents, because the website generates one.
    """
    app = make_app(App)
    for verb, *_ in VERBS:
        show_docstring(app[verb])
    text = app.generate_docs(output_format="markdown")
    # cyclopts names a nested command after the way in which Python was started, such as `python -m archlab`.
    text = re.sub(r"(?m)^(archlab .*) -m [\w.]+(?= \[OPTIONS\])", r"\1", text)
    about, _, _ = text.partition("\n## Table of Contents")
    _, _, verbs = text.partition("\n## archlab ")
    sections = re.split(r"(?m)^(?=#+ archlab )", f"## archlab {verbs}")
    named = ((_command(section), section) for section in sections if section)
    with_examples = "".join(
        f"{with_names(section, app.parse_commands(command)[1][-1]).rstrip()}\n\n{_examples(command)}"
        for command, section in named
    )
    return f"{about.replace('# archlab', '# Commands', 1)}\n{TRUST_HELP}\n\n{with_examples}"


def _command(section: str) -> str:
    """Return the command that a section is about, such as `study run`."""
    return section.partition("\n")[0].partition("archlab ")[2].strip()


def _examples(command: str) -> str:
    lines = [line.removeprefix("  ") for line in example_lines(command)[2:]]
    return "\n".join(["**Examples**:", "", "```sh", *lines, "```", "", ""]) if lines else ""
