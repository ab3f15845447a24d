"""`archlab report` and `archlab guide`: pages to read in a browser."""

import time
from pathlib import Path

import archlab
from archlab.cli.app import TRUST_HELP, make_app
from archlab.cli.arguments import AtLeastOne, Flag
from archlab.cli.terminal import print_json, print_table
from archlab.config.core.text import note
from archlab.errors import UserError


def report(
    run: Path, /, *more: Path, out: Path | None = None, live: AtLeastOne | None = None, json: Flag = False
) -> None:
    """Curves, spikes, probes and speed of a run, or of several side by side, as one page; also while they train.

    Parameters
    ----------
    run
        A run folder.
    more
        Further run folders, to compare with it.
    out
        The page. Left out: report.html in the first run's folder.
    live
        Write the page anew every so many seconds, and have browsers read it anew, until all runs have ended or Ctrl-C.
    json
        Print how each run stands as JSON instead.
    """
    if json and live is not None:
        raise UserError("--json and --live: allowed: one of them")
    if json and out is not None:
        raise UserError("--json and --out: allowed: one of them, for JSON is printed")
    from archlab.report.run.page import COLUMNS, run_rows, standing, write_runs
    from archlab.report.run.watched import watch

    paths = [run, *more]
    runs = watch(paths)
    if json:
        print_json(standing(runs))
        return
    page = (out or run / "report.html").absolute()
    if live is not None:
        note(f"{page} is written anew every {live} s, until all runs have ended or Ctrl-C")
        while not all(watched.summary for watched in runs):
            write_runs(runs, page, refresh_seconds=live)
            time.sleep(live)
            runs = watch(paths)
    write_runs(runs, page)
    print_table(COLUMNS, run_rows(runs), right=COLUMNS[2:])
    print(f"report: {page}")


def guide(*, out: Path) -> None:
    """Write the documents as a static site: tutorials, how-to's, a lecture of every topic, and a reference.

    Parameters
    ----------
    out
        The folder to write it into; its index.html is the first page.
    """
    from archlab.report.drawings.pictures import pictures
    from archlab.report.guide.reference import python_api
    from archlab.report.guide.site import write_guide

    print(write_guide(out, pictures(), commands(), python_api(archlab)))


def commands() -> str:
    """What `--help` says of every command, as Markdown; its table of contents is the site's business."""
    text = make_app().generate_docs(output_format="markdown")
    about, _, _ = text.partition("\n## Table of Contents")
    _, heading, verbs = text.partition("\n## archlab ")
    return f"{about.replace('# archlab', '# Commands', 1)}\n{TRUST_HELP}\n{heading}{verbs}"
