"""Tasks of lm_eval, asked of a model, and its answers kept for the next time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from archlab.errors import UserError
from archlab.files import cache_folder


class Found(NamedTuple):
    """How a model did."""

    rows: list[tuple[str, ...]]
    """Task, examples, questions, measure, value, standard error."""
    raw: dict[str, Any]
    """What lm_eval says, without the questions."""
    cache: Path


def run_tasks(
    path: str, tasks: Sequence[str], *, shots: int | None = None, limit: int | None = None, include: Path | None = None,
    tokenizer: Path | None = None, fresh: bool = False,
) -> Found:  # fmt: skip
    """Ask; UserError without lm_eval, for tasks that there are not, and for a model that cannot be asked.

    Answers lie in the user's cache folder by the model's fingerprint, so that another checkpoint is asked anew and the
    same weights are not, wherever they lie.
    """
    try:
        from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError("lm-eval: lm_eval is not installed; run: pip install 'archlab[lm-eval]'") from None
    from archlab.infer.harness import ArchlabLM

    manager = TaskManager(include_path=str(include) if include else None)
    if not tasks:
        raise UserError("no task; name some, as in arc_easy piqa (`lm_eval ls tasks` lists them)")
    for name in tasks:
        if not manager.match_tasks([name]):
            near = get_close_matches(name, manager.all_tasks, n=3)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise UserError(f"{name}: no such task; {hint}`lm_eval ls tasks` lists all {len(manager.all_tasks):,}")
    model = ArchlabLM(path, tokenizer=str(tokenizer) if tokenizer else None)
    cache = cache_folder() / "lm-eval" / model.fingerprint
    if fresh:
        cache.with_name(f"{cache.name}_rank0.db").unlink(missing_ok=True)
    found = simple_evaluate(
        model, tasks=list(tasks), num_fewshot=shots, limit=limit, task_manager=manager, use_cache=str(cache),
        log_samples=False,
    )  # fmt: skip
    assert found is not None
    raw = json.loads(json.dumps(dict(found), default=str))
    return Found(list(_rows(raw)), raw, cache.parent)


def _rows(raw: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """lm_eval writes `acc,none` and `acc_stderr,none`: measure, and what was made of an answer before it."""
    for task, values in raw["results"].items():
        asked = raw.get("n-samples", {}).get(task, {}).get("effective", "")
        shots = raw.get("n-shot", {}).get(task, "")
        for key, value in values.items():
            measure, _, made = key.partition(",")
            if isinstance(value, int | float) and made and not measure.endswith("_stderr"):
                error = values.get(f"{measure}_stderr,{made}")
                named = measure if made == "none" else f"{measure}, {made}"
                deviation = f"{error:.4f}" if isinstance(error, int | float) else ""
                yield task, str(shots), str(asked), named, f"{value:.4f}", deviation
