"""Evaluation on tasks of lm_eval. Answers are cached."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from archlab.errors import UserError
from archlab.extras import needs_extra
from archlab.files import cache_folder


class TaskScores(NamedTuple):
    """Scores of a model on tasks."""

    rows: list[tuple[str, ...]]
    """Table with the columns task, few-shot examples, questions, metric, value and standard error."""
    raw: dict[str, Any]
    """lm_eval's result as JSON data, without the individual questions."""
    cache: Path
    """Folder with the cached answers."""


def run_tasks(
    path: str, tasks: Sequence[str], *, shots: int | None = None, limit: int | None = None, include: Path | None = None,
    tokenizer: Path | None = None, fresh: bool = False,
) -> TaskScores:  # fmt: skip
    """Evaluate a model on lm_eval tasks.

    `path` and `tokenizer` are arguments of `ArchlabLM`. `shots` is the number of few-shot examples, and `limit` the
    number of questions per task. `include` is a folder that defines additional tasks. Answers are cached in the user's
    cache folder under the model's fingerprint, so copies of the same model share them. `fresh` deletes the model's
    cached answers first.

    Raise UserError if lm_eval is not installed, if a task is unknown, or if the model cannot be evaluated.
    """
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
    model = ArchlabLM(path, tokenizer=str(tokenizer) if tokenizer else None)
    cache = cache_folder() / "lm-eval" / model.fingerprint
    if fresh:
        cache.with_name(f"{cache.name}_rank0.db").unlink(missing_ok=True)
    results = simple_evaluate(
        model, tasks=list(tasks), num_fewshot=shots, limit=limit, task_manager=manager, use_cache=str(cache),
        log_samples=False,
    )  # fmt: skip
    assert results is not None
    raw = json.loads(json.dumps(dict(results), default=str))
    return TaskScores(list(_rows(raw)), raw, cache.parent)


def _rows(raw: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for task, values in raw["results"].items():
        n_questions = raw.get("n-samples", {}).get(task, {}).get("effective", "")
        shots = raw.get("n-shot", {}).get(task, "")
        for key, value in values.items():
            metric, _, answer_filter = key.partition(",")
            if isinstance(value, int | float) and answer_filter and not metric.endswith("_stderr"):
                error = values.get(f"{metric}_stderr,{answer_filter}")
                label = metric if answer_filter == "none" else f"{metric}, {answer_filter}"
                deviation = f"{error:.4f}" if isinstance(error, int | float) else ""
                yield task, str(shots), str(n_questions), label, f"{value:.4f}", deviation
