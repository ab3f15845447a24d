"""Evaluation on tasks of lm_eval. Answers are cached."""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from archlab.errors import UserError, check_at_least
from archlab.extras import needs_extra
from archlab.files import cache_folder


class TaskScore(NamedTuple):
    """Value of a metric of one task."""

    task: str
    shots: int | None
    """Number of solved examples before each question. None for a group of tasks."""
    questions: int | None
    """Number of questions. None for a group of tasks."""
    metric: str
    value: float
    error: float | None
    """Standard error of the value. None if lm_eval does not estimate it."""


class TaskScores(NamedTuple):
    """Scores of a model on tasks."""

    scores: list[TaskScore]
    raw: dict[str, Any]
    """lm_eval's result as JSON data, without the individual questions."""
    cache: Path
    """Folder with the cached answers."""


def lm_eval(
    source: str | Path,
    *tasks: str,
    shots: int | None = None,
    limit: int | None = None,
    include: str | Path | None = None,
    tokenizer: str | Path | None = None,
    fresh: bool = False,
) -> TaskScores:
    """Score a model on tasks of EleutherAI's lm_eval, which the extra `lm-eval` installs.

    - `source`: a run folder, a Hugging Face folder or a hub id. A preset or a YAML file needs `tokenizer`.
    - `tasks`: names of tasks or groups, such as `arc_easy` and `piqa`. Most of their questions come from the Hugging
      Face hub.
    - `shots`: number of solved examples before each question. None means the number that the task sets.
    - `limit`: number of questions per task, beginning with the first. None means all.
    - `include`: a folder with your own tasks, as YAML files of lm_eval.
    - `tokenizer`: a folder with a tokenizer.json that replaces the tokenizer of the model.
    - `fresh`: whether to ask all questions again. Otherwise, the model answers only questions that are new. Answers are
      cached under the model's fingerprint, so copies of the same model share them.

    Raise UserError if lm_eval is not installed, if a task is unknown, or if the model cannot be evaluated.
    """
    check_at_least(0, shots=shots)
    check_at_least(1, limit=limit)
    with needs_extra("lm-eval", "archlab lm-eval"):
        from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    from archlab.infer.harness import ArchlabLM

    manager = TaskManager(include_path=str(include) if include else None)
    if not tasks:
        raise UserError("no task given; name one or more, such as arc_easy piqa (`lm_eval ls tasks` lists all)")
    for name in tasks:
        if not manager.match_tasks([name]):
            near = get_close_matches(name, manager.all_tasks, n=3)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise UserError(f"unknown task {name}; {hint}`lm_eval ls tasks` lists all {len(manager.all_tasks):,}")
    model = ArchlabLM(str(source), tokenizer=str(tokenizer) if tokenizer else None)
    cache = cache_folder() / "lm-eval" / model.fingerprint
    if fresh:
        cache.with_name(f"{cache.name}_rank0.db").unlink(missing_ok=True)
    results = simple_evaluate(
        model, tasks=list(tasks), num_fewshot=shots, limit=limit, task_manager=manager, use_cache=str(cache),
        log_samples=False,
    )  # fmt: skip
    assert results is not None
    raw = json.loads(json.dumps(dict(results), default=str))
    return TaskScores(list(_scores(raw)), raw, cache.parent)


def _scores(raw: Mapping[str, Any]) -> Iterator[TaskScore]:
    for task, values in raw["results"].items():
        n_questions = raw.get("n-samples", {}).get(task, {}).get("effective")
        shots = raw.get("n-shot", {}).get(task)
        for key, value in values.items():
            metric, _, answer_filter = key.partition(",")
            if isinstance(value, int | float) and answer_filter and not metric.endswith("_stderr"):
                error = values.get(f"{metric}_stderr,{answer_filter}")
                error = error if isinstance(error, int | float) else None
                label = metric if answer_filter == "none" else f"{metric}, {answer_filter}"
                yield TaskScore(task, shots, n_questions, label, value, error)
