"""Screens of studies: a list of all, a new one, and one while it runs."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from archlab.config.core.text import visible
from archlab.config.core.yaml_text import read_yaml
from archlab.config.io import studies
from archlab.errors import UserError, user_message
from archlab.files import REPORT, STUDY, write_atomic
from archlab.study.study_file import is_study_folder, library_values, read_study
from archlab.study.summary_file import read_summary
from archlab.ui.compare.differences import DifferencesStudy
from archlab.ui.configs import UnknownNameError, folders_with, path_below
from archlab.ui.lab.curves import line_colors
from archlab.ui.lab.events import live, state_or_problem
from archlab.ui.lab.plan import Plan, checked, example_answers, first_text, plan, scales_to_start, text_of_answers
from archlab.ui.lab.processes import StudyProcesses
from archlab.ui.lab.runs import RunList, is_trained_elsewhere
from archlab.ui.lab.study_state import has_begun, is_finished, study_state
from archlab.ui.pages import as_file, page, rendered
from archlab.ui.saved import REPORT_POLICY, SavedPage

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")


class ListedFolder(NamedTuple):
    """Study folder below the folder of the server."""

    path: str
    address: str
    question: str
    answer: str
    """Answer of a finished study. Empty for others."""
    status: str


class StudyScreens:
    """Screens of the studies below the folder `root`, and of a new one."""

    def __init__(self, root: Path, processes: StudyProcesses) -> None:
        self._root, self._processes = root, processes
        self._runs = RunList(root)

    def listed(self, _: Request) -> Response:
        """Show the studies and runs of the folder, and the studies that come with archlab."""
        return page("studies", **self._list())

    def saved_list(self, _: Request) -> SavedPage:
        return SavedPage("studies", as_file("studies", **self._list()))

    def _list(self) -> dict[str, Any]:
        library = {name: library_values(name)["question"] for name in studies()}
        return {"folders": self._folders(), "runs": self._runs.runs(), "library": library, "scales": scales_to_start}

    def new(self, request: Request) -> Response:
        """Show the form for a new study."""
        if "arms" in request.query_params:
            return _written({**example_answers(), **request.query_params})
        source, scale = (request.query_params.get(name, "") for name in ("from", "scale"))
        name = f"{source}-{scale}" if source and scale else source or "first-study"
        return _form(first_text(source, scale or None), name, answers={} if source else example_answers())

    def new_of(self, study: DifferencesStudy) -> Response:
        """Show the form for a new study of differences."""
        return _form(study.text, "differences", notes=study.notes)

    def planned(self, _: Request, fields: Mapping[str, str]) -> Response:
        """Show what the study in the form would take."""
        name, text = fields.get("name", ""), fields.get("text", "")
        return _or_form(text, name, lambda: _form(text, name, plan(checked(text, self._root))))

    def start(self, _: Request, fields: Mapping[str, str]) -> Response:
        """Write the study of the form as NAME.yaml, and train it in studies/NAME."""
        name, text = fields.get("name", ""), fields.get("text", "")
        return _or_form(text, name, lambda: self._started(text, name))

    def _started(self, text: str, name: str) -> Response:
        if not _NAME.fullmatch(name):
            raise UserError(f"name is {name!r}; allowed: lowercase letters, digits and dashes")
        checked(text, self._root)
        folder, file = self._root / "studies" / name, self._file(name)
        if (file.exists() and file.read_text() != text) or (is_study_folder(folder) and not file.exists()):
            raise UserError(f"{file} or {folder} exists and is another study; choose another name")
        write_atomic(file, text)
        self._processes.start(folder, str(file))
        return RedirectResponse(_address(folder), 303)

    def _file(self, name: str) -> Path:
        """Return the file of a study from the form."""
        return self._root / f"{name}.yaml"

    def _question(self, folder: Path) -> str:
        """Return the question in the file of a study that has no folder yet, or "" if the file cannot be read."""
        with suppress(UserError, OSError):
            return str(read_yaml(self._file(folder.name)).get("question", ""))
        return ""

    def _source(self, folder: Path) -> Path:
        """Return what a study is read from: its folder or, if it was paused before it had one, the file of the form."""
        return folder if is_study_folder(folder) else self._file(folder.name)

    def shown(self, request: Request) -> Response:
        folder = self._folder(request)
        live, source = self._live(folder), str(self._source(folder))
        return page("study_screen", live=live, folder=str(folder), quoted=quote(str(folder)), source=source)

    def live(self, request: Request) -> Response:
        """Send the state of the study whenever it changes, until the study ends or the browser leaves."""
        folder = self._folder(request)
        return live(request, partial(self._live, folder))

    def pause(self, request: Request, _: Mapping[str, str]) -> Response:
        folder = self._folder(request)
        self._processes.pause(folder)
        return RedirectResponse(_address(folder), 303)

    def resume(self, request: Request, _: Mapping[str, str]) -> Response:
        folder = self._folder(request)
        self._processes.start(folder, str(self._source(folder)))
        return RedirectResponse(_address(folder), 303)

    def add_seed(self, request: Request, _: Mapping[str, str]) -> Response:
        """Train a finished study with one more seed."""
        folder = self._folder(request)
        more = study_state(folder).one_more_seed
        if more is None:
            raise UserError(f"{folder} cannot have one more seed; allowed: a finished study whose `seeds` is a number")
        self._processes.start(folder, str(folder), more.n)
        return RedirectResponse(_address(folder), 303)

    def report(self, request: Request) -> Response:
        return FileResponse(self._report(request), headers={"Content-Security-Policy": REPORT_POLICY})

    def saved(self, request: Request) -> SavedPage:
        """Return the report of a study, as `archlab study report` has written it."""
        report = self._report(request)
        return SavedPage(f"{report.parent.name}-report", report.read_bytes())

    def _report(self, request: Request) -> Path:
        report = self._folder(request) / REPORT
        if not report.is_file():
            raise UnknownNameError(f"{report} does not exist yet; it is written when all runs have ended")
        return report

    def _live(self, folder: Path) -> Markup:
        is_running, is_elsewhere = self._activity(folder)
        state, problem = state_or_problem(lambda: study_state(folder) if is_study_folder(folder) else None)
        return rendered(
            "study_live",
            state=state,
            question="" if state else self._question(folder),
            problem=problem,
            is_running=is_running,
            is_elsewhere=is_elsewhere,
            is_pausing=self._processes.is_pausing(folder),
            status=_status(folder, is_running, is_elsewhere, state is not None and state.is_finished),
            has_begun=has_begun(folder),
            output=[visible(line) for line in self._processes.output(folder)],
            colors=line_colors(len(state.rows)) if state else [],
            quoted=quote(str(folder)),
        )

    def _folder(self, request: Request) -> Path:
        name = request.path_params["folder"]
        folder = path_below(name, self._root)
        if folder is not None and is_study_folder(folder):
            return folder
        if self._processes.has_started(self._root / name) or self._root / name in self._without_folder():
            return self._root / name  # its process has not made the folder yet
        raise UnknownNameError(f"{name}: no study folder below the current folder")

    def _folders(self) -> list[ListedFolder]:
        started = [*self._processes.folders(), *self._without_folder()]
        return [self._listed(folder) for folder in dict.fromkeys([*folders_with(STUDY, self._root), *started])]

    def _without_folder(self) -> list[Path]:
        """Return the folders of studies from the form whose process has stopped before it made the folder. Only its
        output and the file of the form exist."""
        logs = (self._root / "studies").glob("*.log")
        folders = [
            log.with_suffix("") for log in sorted(logs) if path_below(str(log.relative_to(self._root)), self._root)
        ]
        return [folder for folder in folders if not is_study_folder(folder) and self._file(folder.name).is_file()]

    def _listed(self, folder: Path) -> ListedFolder:
        finished, problem = state_or_problem(partial(is_finished, folder))
        is_running, is_elsewhere = self._activity(folder)
        is_damaged = problem and folder.exists() and not is_running  # a folder may be moved, or not made yet
        status = "damaged" if is_damaged else _status(folder, is_running, is_elsewhere, bool(finished))
        answer = read_summary(folder).answer if status == "finished" else ""
        return ListedFolder(str(folder), _address(folder), _question(self._source(folder)), answer, status)

    def _activity(self, folder: Path) -> tuple[bool, bool]:
        """Return whether this server trains a study, and whether another process does."""
        is_running = self._processes.is_running(folder)
        return is_running, not is_running and is_trained_elsewhere(folder)


def _status(folder: Path, is_running: bool, is_elsewhere: bool, is_finished: bool) -> str:
    begun = has_begun(folder)
    if is_running or is_elsewhere:
        return ("training" if begun else "preparing") + (" in another process" if is_elsewhere else "")
    return "finished" if is_finished else "not finished" if begun else "no run has begun"


def _form(
    text: str,
    name: str,
    plan: Plan | None = None,
    problem: str = "",
    notes: Sequence[str] = (),
    answers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """Return the form for a study with its text, and notes on the text. The text may be written from `answers`."""
    values = {"text": text, "name": name, "plan": plan, "problem": problem, "notes": notes, "answers": answers}
    return page("study_new", 422 if problem else 200, **values)


def _written(answers: Mapping[str, str]) -> Response:
    """Return the form with the study file that the answers describe."""
    text = problem = ""
    try:
        text = text_of_answers(answers)
    except UserError as error:
        problem = visible(str(error))
    return _form(text, "first-study", problem=problem, answers=answers)


def _or_form(text: str, name: str, answer: Callable[[], Response]) -> Response:
    """Return an answer. If it raises an error of the user, return the form as it is, with the message."""
    try:
        return answer()
    except Exception as error:
        if (message := user_message(error)) is None:
            raise
        return _form(text, name, problem=visible(message))


def _question(folder: Path) -> str:
    try:
        return read_study(folder)[1].question
    except UserError as error:
        return str(error)


def _address(folder: Path) -> str:
    return f"/studies/of/{quote(str(folder))}"
