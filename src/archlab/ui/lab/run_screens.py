"""Screens of one run: its state while it trains, and its report."""

from functools import partial
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from archlab.exchange.configs import folder_first, is_run_folder
from archlab.report.run.watched import watch
from archlab.ui.configs import UnknownNameError, in_address, path_below
from archlab.ui.lab.curves import line_colors
from archlab.ui.lab.events import live, state_or_problem
from archlab.ui.lab.runs import run_state
from archlab.ui.pages import page, rendered
from archlab.ui.saved import SavedPage


class RunScreens:
    """Screens of the runs below the folder `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def shown(self, request: Request) -> Response:
        folder = self._folder(request)
        return page("run_screen", live=_live(folder), folder=str(folder), quoted=quote(str(folder)))

    def live(self, request: Request) -> Response:
        """Send the state of the run whenever it changes, until the browser leaves."""
        return live(request, partial(_live, self._folder(request)))

    def saved(self, request: Request) -> SavedPage:
        """Return the page of `archlab report`."""
        from archlab.report.run.page import render  # loads torch and Altair

        folder = self._folder(request)
        return SavedPage(f"{folder.name}-report", render(watch([folder])))

    def _folder(self, request: Request) -> Path:
        name = request.path_params["folder"]
        folder = path_below(name, self._root)
        if folder is None or not is_run_folder(folder):
            raise UnknownNameError(f"{name}: no run folder below the current folder")
        return folder


def _live(folder: Path) -> Markup:
    state, problem = state_or_problem(partial(run_state, folder))
    return rendered(
        "run_live",
        folder=folder,
        state=state,
        problem=problem,
        colors=line_colors(1),
        quoted=quote(str(folder)),
        config=in_address(folder_first(str(folder))),
    )
