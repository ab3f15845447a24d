"""The commands `archlab eval` and `archlab lm-eval`, which measure the quality of a model."""

from pathlib import Path

from archlab.cli.arguments import AtLeastOne, ConfigName, ConfigOrOverride, Flag, WholeNumber, split_overrides
from archlab.cli.terminal import print_json, print_table
from archlab.console import console
from archlab.progress import doing


def evaluate(
    config: ConfigName,
    /,
    *more: ConfigOrOverride,
    tokens: AtLeastOne | None = None,
    int8: Flag = False,
    json: Flag = False,
) -> None:
    """Compute bits per byte on held-out text, for one model, or for several on the same text.

    The difference of each model from the first has a 95% interval. It covers the choice of the windows of this text,
    not the seeds of training.

    The text, the objective and the length of the windows are those of the first run folder. If no source is a run
    folder, they are those of the first source; set data.path if that is a Hugging Face folder. A text that data.path
    names is encoded with the tokenizer of that source. train.dtype decides the precision; by default, it is that of
    the fastest training on this machine.

    Parameters
    ----------
    config
        A run folder, whose last checkpoint is scored; a Hugging Face folder or a hub id; or an untrained preset or YAML
        file.
    more
        More models to compare with the first, and fields to change for all models, as in data.path=FOLDER or
        train.seq_len=512.
    tokens
        Number of held-out tokens to read. Objectives that hide tokens predict only some of them. Default: all.
    int8
        Quantize the weight matrices of the layers and of the head to 8 bits, with one scale per row.
    json
        Print JSON: an object, or a list if there are several models.
    """
    from archlab.infer.evaluate import evaluate as evaluated

    sources, overrides = split_overrides(config, more)
    with doing("scoring held-out text"):
        evaluations = evaluated(*sources, overrides=overrides, tokens=tokens, int8=int8)
    if json:
        print_json([each.data for each in evaluations] if len(evaluations) > 1 else evaluations[0].score.model_dump())
        return
    from archlab.report.evaluations import print_evaluations

    print_evaluations(console(), evaluations)


def lm_eval(
    path: ConfigName,
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
    from archlab.infer.tasks import lm_eval as scored

    results = scored(path, *tasks, shots=shots, limit=limit, include=include, tokenizer=tokenizer, fresh=fresh)
    if json:
        print_json(results.raw)
        return
    print_table(
        ("task", "shots", "questions", "measure", "value", "±"),
        [
            (
                score.task,
                *("" if n is None else str(n) for n in (score.shots, score.questions)),
                score.metric,
                f"{score.value:.4f}",
                "" if score.error is None else f"{score.error:.4f}",
            )
            for score in results.scores
        ],
        right=("shots", "questions", "value", "±"),
    )
    print(f"±: standard error. Answers are cached in {results.cache}")
