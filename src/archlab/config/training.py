"""Resolution of the section `train`, in which every derived field is filled in."""

from math import ceil

from archlab.config.core.registry import kinds
from archlab.config.core.text import note_once
from archlab.config.layers import sees_as
from archlab.config.model_schema import ModelConfig
from archlab.config.objective import Mixable, Mixture, Objective, TokensRead
from archlab.config.optimizer import Schedule
from archlab.config.problems import ConfigError, Problem, raise_problems
from archlab.config.schema import Config, TrainConfig
from archlab.config.tasks import Task

ABOUT_A_BATCH = 8192
"""Minimum of the default of batch_tokens. The default is this number, rounded up to whole sequences."""


SHORT_RUN = 1_000_000
"""Default number of tokens of a training run."""


_PREDICTS = {
    "causal": "predict each token from those before it",
    "prefix": "predict the tokens after a prefix whose tokens see each other",
    "two_sided": "predict each token from those on both sides",
}
"""Task of training and scoring, by the visibility of attention that the objective needs."""


def check_objective(model: ModelConfig, objective: Objective) -> None:
    """Raise ConfigError if the objective cannot train the model.

    Attention must see what the objective needs, and must not see what it has to predict. The objective must use the
    encoder of the model, if there is one.
    """
    if model.encoder is not None:
        root = Mixable if isinstance(objective, Mixture) else Objective
        fit = " or ".join(name for name, kind in kinds(root).items() if kind.fits_encoder)
        raise_problems(
            [
                Problem(f"{field}.kind", f"{own.kind} has no source text for model.encoder to read; allowed: {fit}")
                for field, own in objective.by_field().items()
                if not own.fits_encoder
            ],
            "the config",
        )
        return
    needed = objective.visibility
    seen = [visibility for visibility in ("prefix", "two_sided") if sees_as(model, visibility)]
    wrong = [visibility for visibility in seen if visibility != needed]
    if needed != "causal" and not seen:
        wrong = ["causal"]
    for visibility in wrong:
        kinds_that_fit = [name for name, kind in kinds(Objective).items() if kind.visibility == visibility]
        other = f"; or train.objective.kind={' or '.join(kinds_that_fit)}" if kinds_that_fit else ""
        text = f"{visibility}; training and scoring {_PREDICTS[needed]}; allowed: {needed}{other}"
        raise ConfigError([Problem("model.attention.visibility", text)], "the config")


def tokens_read(config: Config) -> TokensRead:
    """Return the numbers of tokens that the model reads for each training window."""
    train = resolve_train(config)
    return train.objective.tokens_read(train.seq_len, has_encoder=config.model.encoder is not None)


def tokens_predicted(config: Config) -> float | None:
    """Return the mean number of tokens of a training window that get logits. None: all tokens of the stack or of the
    decoder. For pairs of texts and for conversations, this is the largest number, because the lengths of targets and
    responses are in the data."""
    train, task = resolve_train(config), config.data.task
    n_answers = task.answers_per_window(train.seq_len) if isinstance(task, Task) else None
    return train.objective.tokens_predicted(train.seq_len, n_answers)


def resolve_train(config: Config) -> TrainConfig:
    """Return the train section with every derived field filled in. Resolving the result again changes nothing."""
    train = config.train
    seq_len = train.seq_len or config.model.max_seq_len
    batch_tokens = train.batch_tokens or seq_len * ceil(ABOUT_A_BATCH / seq_len)
    tokens = train.tokens or max(SHORT_RUN, batch_tokens)
    eval_every = train.eval_every or max(1, tokens // batch_tokens // 10)
    schedule = kinds(Schedule)[train.schedule]
    derived = {
        "tokens": tokens,
        "seq_len": seq_len,
        "batch_tokens": batch_tokens,
        "micro_batch_tokens": train.micro_batch_tokens or batch_tokens,
        "final_lr": schedule.final_lr if train.final_lr is None else train.final_lr,
        "decay": schedule.decay if train.decay is None else train.decay,
        "eval_seq_len": train.eval_seq_len or seq_len,
        "eval_every": eval_every,
        "checkpoint_every": train.checkpoint_every or eval_every,
    }
    return train.model_copy(update=derived)


def without_teacher(config: Config, what: str) -> Config:
    """Return the config without `train.teacher`. If it has one, note that `what` are those of the model alone."""
    if config.train.teacher is None:
        return config
    note_once(f"{what} are those of the model alone, without the passes and the weights of its teacher (train.teacher)")
    return config.model_copy(update={"train": config.train.model_copy(update={"teacher": None})})
