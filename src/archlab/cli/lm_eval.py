"""`archlab lm-eval`."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Flag, WholeNumber
from archlab.cli.terminal import print_json, print_table


def run(
    path: str,
    /,
    *tasks: str,
    shots: WholeNumber | None = None,
    limit: AtLeastOne | None = None,
    include: Path | None = None,
    tokenizer: Path | None = None,
    fresh: Flag = False,
    json: Flag = False,
) -> None:
    """Score a model on tasks of EleutherAI's lm_eval (extra `lm-eval`). What it answered before is not asked again.

    Parameters
    ----------
    path
        A run folder, a Hugging Face folder or a hub id; a preset or a YAML file, with --tokenizer.
    tasks
        Names of tasks or groups, as in arc_easy piqa; `lm_eval ls tasks` lists them.
    shots
        Solved examples before each question. Left out: as the task says.
    limit
        Questions of each task, the first ones. Left out: all.
    include
        A folder with tasks of your own, as YAML files of lm_eval.
    tokenizer
        A folder with a tokenizer.json, in place of the model's own; for a config, whose weights are random.
    fresh
        Ask everything again.
    json
        All that lm_eval found as JSON instead, without the questions.
    """
    from archlab.infer.tasks import run_tasks

    found = run_tasks(path, tasks, shots=shots, limit=limit, include=include, tokenizer=tokenizer, fresh=fresh)
    if json:
        print_json(found.raw)
        return
    print_table(
        ("task", "shots", "questions", "measure", "value", "±"), found.rows, right=("shots", "questions", "value", "±")
    )
    print(f"±: standard error; answers are kept in {found.cache}")
