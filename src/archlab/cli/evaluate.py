"""`archlab eval` and `archlab lm-eval`: how good a model is."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Flag, WholeNumber
from archlab.cli.terminal import print_json, print_table
from archlab.progress import doing


def evaluate(
    config: str, /, *overrides: str, tokens: AtLeastOne | None = None, int8: Flag = False, json: Flag = False
) -> None:
    """Bits per byte on held-out text: of a run's last checkpoint, or of an untrained config.

    Parameters
    ----------
    config
        A run folder, a Hugging Face folder, a preset's name or a YAML file.
    overrides
        Fields to change, as in data.path=FOLDER or train.seq_len=512.
    tokens
        Held-out tokens to score. Left out: all.
    int8
        With the matrices of layers and head as 8-bit numbers, a scale per row.
    json
        JSON instead.
    """
    from archlab.infer.score import score

    with doing("scoring held-out text"):
        found = score(config, overrides, tokens, int8=int8)
    if json:
        print_json(found.model_dump())
        return
    state = f"after {found.trained_steps} steps" if found.trained_steps else "with the weights of this folder"
    state = state if found.trained else "untrained"
    print(f"{found.result} ({found.loss:.4f} nats per token), {state}")
    print(f"on {found.tokens:,} held-out tokens in windows of {found.context}: {found.corpus}")


def lm_eval(
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
