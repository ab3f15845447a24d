"""Checks of a run before it opens its data: `check_run` is the list."""

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.moe import MoE
from archlab.config.core.registry import is_users
from archlab.config.layers import distinct_layers
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import ConfigError, Problem, raise_problems
from archlab.config.schema import Config, TrainConfig
from archlab.config.tasks import Task
from archlab.config.training import check_next_token, resolve_train
from archlab.errors import UserError
from archlab.pricing.memory import training_memory
from archlab.pricing.params import parameters
from archlab.training.device import Device
from archlab.training.sinks import check_installed
from archlab.training.world import World


def check_run(config: Config, train: TrainConfig, device: Device, world: World) -> None:
    """Raise UserError for what the model, the processes or this machine cannot do."""
    check_next_token(config.model)
    if world.is_first:
        check_installed(train.log)
    _check_probes(train, world)
    check_shares(config.model, world.tensor)
    check_dealt(config.model, world.expert)
    check_divided(config, train.seq_len, world.context)
    _check_memory(config.model, train, device, world)


def shared_by(n_processes: int, config: Config) -> TrainConfig:
    """Return the resolved settings of each of `n_processes` that read windows of their own.

    Raise ConfigError if they cannot share a batch evenly.
    """
    train = resolve_train(config)
    own, rest = divmod(train.rows, n_processes)
    asked = config.train.micro_batch_tokens
    if rest:
        found = f"{train.batch_tokens:,}, which are {train.rows} windows, for {n_processes} processes"
        allowed = f"a multiple of {n_processes * train.seq_len:,}"
        raise ConfigError([Problem("train.batch_tokens", f"{found}; allowed: {allowed}")], "the config")
    if asked and own % (asked // train.seq_len):
        found = f"{asked:,}; each of {n_processes} processes has {own * train.seq_len:,} tokens of a batch"
        raise ConfigError([Problem("train.micro_batch_tokens", f"{found}; allowed: a divisor of these")], "the config")
    return train if asked else train.model_copy(update={"micro_batch_tokens": own * train.seq_len})


def decides_by_micro_batch(model: ModelConfig) -> bool:
    """Whether losses depend on how a batch is cut into micro batches: what is dropped is drawn for each by itself, and
    in each by itself experts are balanced."""
    mixtures = (layer.mlp for layer in distinct_layers(model) if isinstance(layer.mlp, MoE))
    return has_dropout(model) or any(mixture.balance.loss for mixture in mixtures)


def has_dropout(model: ModelConfig) -> bool:
    """Anywhere."""
    return bool(model.dropout.embedding) or any(rate for layer in distinct_layers(model) for _, rate in layer.dropout)


def _check_probes(train: TrainConfig, world: World) -> None:
    if world.size > 1 and train.probe_every:
        found = f"{train.probe_every}; probes are of one process, and there are {world.size}; allowed: null"
        raise ConfigError([Problem("train.probe_every", found)], "the config")


def _check_memory(model: ModelConfig, train: TrainConfig, device: Device, world: World) -> None:
    """At least: of tables and the head, and of what is no expert, each process of a group has more."""
    shards = world.mesh.size(1) * world.mesh.size(2) if world.mesh else 1
    device.check_memory(training_memory(parameters(model), train.optimizer).total // shards)


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
    mixtures = [layer.mlp for layer in distinct_layers(model) if isinstance(layer.mlp, MoE)]
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
    if has_dropout(config.model):
        found.append("model.dropout would drop other numbers than in one process; allowed with it: 1")
    for layer in distinct_layers(config.model):
        for branch in layer.branches:
            component = branch.component
            if is_users(type(component)):
                found.append(f"model.{branch.name} is yours, and may look at other tokens; allowed with it: 1")
            elif not isinstance(component, AnyAttention) and component.state(layer.site, 1):
                found.append(f"model.{branch.name} goes through a window token by token; allowed with it: 1")
    if isinstance(config.data.task, Task):
        found.append("data.task scores some tokens of a window only, which cannot be dealt evenly; allowed with it: 1")
    if seq_len % (2 * n):
        found.append(f"windows of {seq_len} tokens; allowed: lengths that are divided by {2 * n}")
    problems = [Problem("parallel.context", f"{n}; {why}") for why in dict.fromkeys(found)]
    raise_problems(problems, "the config")
