"""From the authored train config to one with nothing left to derive, which is all that training reads."""

from math import ceil

from archlab.config.any_attention import AnyAttention
from archlab.config.layers import distinct_layers, sees_as
from archlab.config.model_schema import ModelConfig
from archlab.config.moe import ResolvedMoE
from archlab.config.plug_in import PlugInComponent
from archlab.config.problems import ConfigError, Problem, raise_problems
from archlab.config.schema import Config, TrainConfig
from archlab.config.tasks import AnyTask
from archlab.errors import UserError

ABOUT_A_BATCH = 8192
"""Tokens that a batch holds at least where the config does not say."""


SHORT_RUN = 1_000_000
"""Tokens of a run of which the config does not say how long it is."""


class ResolvedTrain(TrainConfig):
    """TrainConfig with every derived value filled in."""

    tokens: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    seq_len: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    batch_tokens: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    micro_batch_tokens: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    final_lr: float  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    decay: float  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    eval_seq_len: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    eval_every: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    checkpoint_every: int  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]

    @property
    def steps(self) -> int:
        """Optimiser updates in the whole run."""
        return self.tokens // self.batch_tokens

    @property
    def trained(self) -> int:
        """Tokens that are trained on: whole batches only."""
        return self.steps * self.batch_tokens

    @property
    def rows(self) -> int:
        """Training windows per step."""
        return self.batch_tokens // self.seq_len


def among(train: ResolvedTrain, config: Config, n_processes: int) -> ResolvedTrain:
    """The settings with micro batches that so many processes share; ConfigError where they cannot be dealt evenly."""
    own, rest = divmod(train.rows, n_processes)
    asked = config.train.micro_batch_tokens
    if rest:
        found = f"{train.batch_tokens:,}, which are {train.rows} windows, for {n_processes} processes"
        raise ConfigError([Problem("train.batch_tokens", f"{found}; allowed: as many for each")], "the config")
    if asked and own % (asked // train.seq_len):
        found = f"{asked:,}; each of {n_processes} processes has {own * train.seq_len:,} tokens of a batch"
        raise ConfigError([Problem("train.micro_batch_tokens", f"{found}; allowed: a divisor of these")], "the config")
    return train if asked else train.model_copy(update={"micro_batch_tokens": own * train.seq_len})


def check_shares(model: ModelConfig, n: int) -> None:
    """ConfigError that names what so many processes cannot share (`parallel.tensor`)."""
    if n == 1:
        return
    found = dict[str, Problem]()
    for layer in distinct_layers(model):
        for branch in layer.branches:
            try:
                branch.component.share(n).parameters(layer.site)
            except UserError as error:
                found[str(error)] = Problem("parallel.tensor", f"{n}; model.{branch.name}: {error}")
        if layer.dropout.attention:
            why = f"{n}; model.dropout.attention would drop other scores than in one process; allowed with it: 1"
            found[why] = Problem("parallel.tensor", why)
    raise_problems(list(found.values()), "the config")


def check_dealt(model: ModelConfig, n: int) -> None:
    """ConfigError where so many processes cannot be dealt the experts (`parallel.expert`)."""
    mixtures = [layer.mlp for layer in distinct_layers(model) if isinstance(layer.mlp, ResolvedMoE)]
    if n > 1 and not mixtures:
        found = f"{n}, and no layer has experts; allowed: 1"
        raise ConfigError([Problem("parallel.expert", found)], "the config")
    for mixture in mixtures:
        try:
            mixture.dealt(n)
        except UserError as error:
            raise ConfigError([Problem("parallel.expert", f"{n}; model.mlp: {error}")], "the config") from None


def check_divided(config: Config, seq_len: int, n: int) -> None:
    """ConfigError that names what hinders so many processes from dividing each window (`parallel.context`)."""
    if n == 1:
        return
    found = list[str]()
    for layer in distinct_layers(config.model):
        for branch in layer.branches:
            component = branch.component
            if isinstance(component, PlugInComponent):
                found.append(f"model.{branch.name} is a plug-in, which may look at other tokens; allowed with it: 1")
            elif not isinstance(component, AnyAttention) and component.state(layer.site, 1):
                found.append(f"model.{branch.name} goes through a window token by token; allowed with it: 1")
        if any(rate for _, rate in layer.dropout):
            found.append("model.dropout would drop other numbers than in one process; allowed with it: 1")
    if config.model.dropout.embedding:
        found.append("model.dropout would drop other numbers than in one process; allowed with it: 1")
    if isinstance(config.data.task, AnyTask):
        found.append("data.task scores some tokens of a window only, which cannot be dealt evenly; allowed with it: 1")
    if seq_len % (2 * n):
        found.append(f"windows of {seq_len} tokens; allowed: lengths that are divided by {2 * n}")
    problems = [Problem("parallel.context", f"{n}; {why}") for why in dict.fromkeys(found)]
    raise_problems(problems, "the config")


def check_next_token(model: ModelConfig) -> None:
    """ConfigError where tokens see what comes after them: neither a loss nor a score would mean much."""
    for visibility in ("prefix", "two_sided"):
        if sees_as(model, visibility):
            found = f"{visibility}; training and scoring predict each token from those before it; allowed: causal"
            raise ConfigError([Problem("model.attention.visibility", found)], "the config")


def resolve_train(config: Config) -> ResolvedTrain:
    """The train section with derived fields written out; resolving twice changes nothing."""
    train = config.train
    seq_len = train.seq_len or config.model.max_seq_len
    batch_tokens = train.batch_tokens or seq_len * ceil(ABOUT_A_BATCH / seq_len)
    tokens = train.tokens or max(SHORT_RUN, batch_tokens)
    eval_every = train.eval_every or max(1, tokens // batch_tokens // 10)
    constant, wsd = train.schedule == "constant", train.schedule == "wsd"
    derived = {
        "tokens": tokens,
        "seq_len": seq_len,
        "batch_tokens": batch_tokens,
        "micro_batch_tokens": train.micro_batch_tokens or batch_tokens,
        "final_lr": (1.0 if constant else 0.1) if train.final_lr is None else train.final_lr,
        "decay": (0.2 if wsd else 0.0) if train.decay is None else train.decay,
        "eval_seq_len": train.eval_seq_len or seq_len,
        "eval_every": eval_every,
        "checkpoint_every": train.checkpoint_every or eval_every,
    }
    return ResolvedTrain.model_construct(**{**dict(train), **derived})
