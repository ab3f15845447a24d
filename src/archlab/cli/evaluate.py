"""The commands `archlab eval` and `archlab lm-eval`, which measure the quality of a model."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne, Flag, WholeNumber
from archlab.cli.terminal import print_json, print_table
from archlab.progress import doing


def evaluate(
    config: str, /, *overrides: str, tokens: AtLeastOne | None = None, int8: Flag = False, json: Flag = False
) -> None:
    """Compute bits per byte on held-out text, for the last checkpoint of a run or for an untrained config.

    Parameters
    ----------
    config
        A run folder, a Hugging Face folder, a preset or a YAML file.
    overrides
        Fields to change, as in data.path=FOLDER or train.seq_len=512.
    tokens
        Number of held-out tokens to read. Objectives that hide tokens predict only some of them. Default: all.
    int8
        Quantize the weight matrices of the layers and of the head to 8 bits, with one scale per row.
    json
        Print JSON.
    """
    from archlab.infer.score import score

    with doing("scoring held-out text"):
        scored = score(config, overrides, tokens, int8=int8)
    if json:
        print_json(scored.model_dump())
        return
    loss = f" ({scored.loss:.4f} nats per token)" if scored.denoising_loss is None else ""
    state = f"after {scored.trained_steps:,} steps" if scored.trained_steps else "with the folder's weights"
    print(f"{scored.result}{loss}")
    print(
        f"{state if scored.trained else 'untrained'}, on {scored.tokens:,} predicted tokens in windows of "
        f"{scored.context:,}"
    )
    print(f"data: {scored.corpus}")


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
    """Score a model on tasks of EleutherAI's lm_eval, which the extra `lm-eval` installs.

    The model's answers are cached. When the command is repeated, the model answers only questions that are new.

    Parameters
    ----------
    path
        A run folder, a Hugging Face folder or a hub id. A preset or a YAML file needs --tokenizer.
    tasks
        Names of tasks or groups, as in arc_easy piqa. `lm_eval ls tasks` lists them.
    shots
        Number of solved examples before each question. Default: the number that the task sets.
    limit
        Ask only this number of questions per task, beginning with the first. Default: all.
    include
        A folder with your own tasks, as YAML files of lm_eval.
    tokenizer
        A folder with a tokenizer.json that replaces the tokenizer of the model. It is required for a preset or a YAML
        file, whose weights are random.
    fresh
        Ask all questions again.
    json
        Print all results of lm_eval as JSON, without the questions.
    """
    from archlab.infer.tasks import run_tasks

    results = run_tasks(path, tasks, shots=shots, limit=limit, include=include, tokenizer=tokenizer, fresh=fresh)
    if json:
        print_json(results.raw)
        return
    print_table(
        ("task", "shots", "questions", "measure", "value", "±"),
        results.rows,
        right=("shots", "questions", "value", "±"),
    )
    print(f"±: standard error. Answers are cached in {results.cache}")
