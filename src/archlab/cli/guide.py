"""`archlab guide`."""

from pathlib import Path

from archlab.cli.app import TRUST_HELP, make_app
from archlab.report.drawings.pictures import pictures
from archlab.report.guide.site import write_guide


def run(*, out: Path) -> None:
    """Write the documents as a static site: tutorials, how-to's, a lecture of every topic, and a reference.

    Parameters
    ----------
    out
        The folder to write it into; its index.html is the first page.
    """
    print(write_guide(out, pictures(), commands()))


def commands() -> str:
    """What `--help` says of every command, as Markdown; its table of contents is the site's business."""
    text = make_app().generate_docs(output_format="markdown")
    about, _, _ = text.partition("\n## Table of Contents")
    _, heading, verbs = text.partition("\n## archlab ")
    return f"{about.replace('# archlab', '# Commands', 1)}\n{TRUST_HELP}\n{heading}{verbs}"
