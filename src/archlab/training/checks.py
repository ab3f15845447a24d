"""Checks of a run: its settings for several processes, its memory, and whether its data can be divided.

`check_run` calls the checks that need no data.
"""

from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.moe import MoE
from archlab.config.core.registry import is_users
from archlab.config.layers import distinct_layers
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import ConfigError, Problem, raise_problems
from archlab.config.schema import Config, TrainConfig
from archlab.config.training import check_objective, resolve_train
from archlab.data.training_data import TrainingData
from archlab.errors import UserError
from archlab.pricing.memory import training_memory_of
from archlab.training.device import Device
from archlab.training.sinks import check_installed
from archlab.training.world import World


def check_run(config: Config, train: TrainConfig, device: Device, world: World) -> None:
    """Raise UserError if the model, the number of processes or this machine is unsuitable for the run."""
    check_objective(config.model, config.train.objective)
    if world.is_first:
        check_installed(train.log)
    _check_probes(train, world)
    check_tensor_parallel(config.model, world.tensor)
    check_expert_parallel(config.model, world.expert)
    check_context_parallel(config, train.seq_len, world.context)
    _check_memory(config, device, world)


def settings_per_process(n_processes: int, config: Config) -> TrainConfig:
    """Return the resolved training settings of each process.

    `n_processes` is the number of processes that read their own windows. Raise ConfigError if a batch cannot be divided
    evenly among them.
    """
    train = resolve_train(config)
    own, rest = divmod(train.rows, n_processes)
    micro_batch = config.train.micro_batch_tokens
    if rest:
        message = f"{train.batch_tokens:,} ({train.rows} windows) for {n_processes} processes"
        allowed = f"a multiple of {n_processes * train.seq_len:,}"
        raise ConfigError([Problem("train.batch_tokens", f"{message}; allowed: {allowed}")], "the config")
    if micro_batch and own % (micro_batch // train.seq_len):
        n_own = f"{own * train.seq_len:,}"
        message = f"{micro_batch:,}; each of {n_processes} processes has {n_own} tokens of a batch"
        problem = Problem("train.micro_batch_tokens", f"{message}; allowed: a divisor of {n_own}")
        raise ConfigError([problem], "the config")
    return train if micro_batch else train.model_copy(update={"micro_batch_tokens": own * train.seq_len})


def loss_depends_on_micro_batches(config: Config) -> bool:
    """Return whether the loss depends on how a batch is split into micro-batches.

    Dropout draws new random numbers for each micro-batch, and the balance loss of experts is computed per micro-batch.
    """
    mixtures = (layer.mlp for layer in distinct_layers(config.model) if isinstance(layer.mlp, MoE))
    return bool(_dropout(config)) or any(mixture.balance.loss for mixture in mixtures)


def _dropout(config: Config) -> str | None:
    """Return the section that sets a dropout, or None if nothing is dropped."""
    model, lora = config.model, config.train.lora
    if model.dropout.embedding or any(rate for layer in distinct_layers(model) for _, rate in layer.dropout):
        return "model.dropout"
    return "train.lora.dropout" if lora and lora.dropout else None


def _check_probes(train: TrainConfig, world: World) -> None:
    if world.size > 1 and train.probe_every:
        message = f"{train.probe_every}; probes run in a single process only, but there are {world.size}; allowed: null"
        raise ConfigError([Problem("train.probe_every", message)], "the config")


def _check_memory(config: Config, device: Device, world: World) -> None:
    shards = world.mesh.size(1) * world.mesh.size(2) if world.mesh else 1
    device.check_memory(training_memory_of(config).total // shards)


def check_tensor_parallel(model: ModelConfig, n: int) -> None:
    """Raise a ConfigError that lists all reasons if `n` processes cannot split the components (`parallel.tensor`)."""
    if n == 1:
        return
    problems = dict[str, Problem]()
    for layer in distinct_layers(model):
        for branch in layer.branches:
            try:
                branch.component.share(n).parameters(branch.site)
            except UserError as error:
                problems[str(error)] = Problem("parallel.tensor", f"{n}; model.{branch.name}: {error}")
        if layer.dropout.attention:
            why = (
                f"{n}; model.dropout.attention would drop different scores than in one process; allowed with dropout: 1"
            )
            problems[why] = Problem("parallel.tensor", why)
    raise_problems(list(problems.values()), "the config")


def check_expert_parallel(model: ModelConfig, n: int) -> None:
    """Raise ConfigError if the experts cannot be distributed over `n` processes (`parallel.expert`)."""
    mixtures = [layer.mlp for layer in distinct_layers(model) if isinstance(layer.mlp, MoE)]
    if n > 1 and not mixtures:
        message = f"{n}, but no layer has experts; allowed: 1"
        raise ConfigError([Problem("parallel.expert", message)], "the config")
    for mixture in mixtures:
        try:
            mixture.divide_experts(n)
        except UserError as error:
            raise ConfigError([Problem("parallel.expert", f"{n}; model.mlp: {error}")], "the config") from None


def check_context_parallel(config: Config, seq_len: int, n: int) -> None:
    """Raise a ConfigError that lists all reasons if `n` processes cannot split each window (`parallel.context`)."""
    if n == 1:
        return
    reasons = list[str]()
    if dropout := _dropout(config):
        reasons.append(f"{dropout} would drop different activations than in one process; allowed with dropout: 1")
    for layer in distinct_layers(config.model):
        for branch in layer.branches:
            component = branch.component
            if is_users(type(component)):
                reasons.append(
                    f"model.{branch.name} is a component of a plug-in and may need tokens of other processes; "
                    "allowed with this component: 1"
                )
            elif not isinstance(component, AnyAttention) and component.state(branch.site, 1):
                reasons.append(
                    f"model.{branch.name} must read the tokens of a window in order; allowed with this component: 1"
                )
    if config.train.objective.tokens_predicted(seq_len) is not None:
        reasons.append(
            f"train.objective {config.train.objective.kind} predicts only some tokens of a window, which cannot be "
            "divided evenly; allowed: 1"
        )
    if seq_len % (2 * n):
        reasons.append(f"windows have {seq_len} tokens; allowed: a multiple of {2 * n}")
    problems = [Problem("parallel.context", f"{n}; {why}") for why in dict.fromkeys(reasons)]
    raise_problems(problems, "the config")


def check_data_can_be_divided(data: TrainingData, n: int) -> None:
    """Raise ConfigError if `n` processes would have to split windows of which only some tokens count
    (`parallel.context`)."""
    counted = {"task": "answers of a task", "pairs": "targets of pairs", "conversations": "responses"}
    if n > 1 and data.form in counted:
        only = f"only the {counted[data.form]} count, and these cannot be divided evenly"
        message = f"{n}; {only}; allowed with this data: 1"
        raise ConfigError([Problem("parallel.context", message)], "the config")
