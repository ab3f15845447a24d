"""Opening of the teacher's weights (`train.teacher`), and checks that it can teach a run."""

from collections.abc import Iterator
from math import prod

from archlab.config.model_schema import ModelConfig
from archlab.config.problems import ConfigError, Problem, raise_problems
from archlab.config.rules.run_rules import learned_positions_end
from archlab.config.schema import Config
from archlab.config.teacher import TeacherConfig
from archlab.config.training import check_objective, resolve_train
from archlab.data.training_data import TrainingData
from archlab.errors import at
from archlab.pricing.memory import BYTES, training_memory_of
from archlab.training.device import Device
from archlab.training.trained_weights import TrainedWeights, open_weights
from archlab.training.world import WITHIN, World

NO_TEACHER = (
    "null, and so is train.start, whose weights would be the teacher; allowed: a run folder, a Hugging Face folder "
    "or a hub id"
)
"""Message if no weights can be the teacher."""


def open_teacher(config: Config) -> TrainedWeights | None:
    """Open the weights of `train.teacher`, or return None without one. Raise ConfigError if the teacher cannot teach
    this run, and UserError if its weights cannot be read."""
    settings = config.train.teacher
    if settings is None:
        return None
    if (path := settings.path or config.train.start) is None:
        raise ConfigError([Problem("train.teacher.path", NO_TEACHER)], "the config")
    with at("train.teacher.path" if settings.path else "train.start"):
        teacher = open_weights(path)
    raise_problems(list(teacher_problems(config, settings, path, teacher.weights.model)), "the config")
    return teacher


def teacher_problems(config: Config, settings: TeacherConfig, path: str, teacher: ModelConfig) -> Iterator[Problem]:
    """Yield a problem for each reason why a model cannot teach a run. `path` is the name of the model in messages."""
    model, parallel = config.model, config.parallel

    def differs(field: str, *, why: str) -> Iterator[Problem]:
        own, wanted = getattr(teacher, field), getattr(model, field)
        if own != wanted:
            message = f"{path} has {field} = {own}, but model.{field} is {wanted}; {why}"
            yield Problem("train.teacher.path", message)

    yield from differs("vocab_size", why="both predict the same tokens; allowed: a teacher with the same vocabulary")
    if (teacher.encoder is None) != (model.encoder is None):
        has = "no encoder" if teacher.encoder is None else "an encoder"
        yield Problem(
            "train.teacher.path", f"{path} has {has}, unlike the model; allowed: both or none with an encoder"
        )
    else:
        try:
            check_objective(teacher, config.train.objective)
        except ConfigError as error:
            yield Problem("train.teacher.path", f"{path}: {error.problems[0].path}: {error.problems[0].message}")
    of_teacher = config.model_copy(update={"model": teacher})
    if too_long := learned_positions_end(of_teacher, resolve_train(config).seq_len):
        yield Problem("train.teacher.path", f"{path}: train.seq_len: {too_long}")
    if settings.hidden:
        if model.encoder is not None:
            why = "the layers of an encoder are not matched; allowed with model.encoder: 0"
            yield Problem("train.teacher.hidden", f"{settings.hidden:g}; {why}")
        for field in ("d_model", "n_layers"):
            yield from differs(field, why="train.teacher.hidden compares layer by layer; allowed: equal, or hidden: 0")
    for way in WITHIN:
        if (n := getattr(parallel, way)) > 1:
            allowed = "allowed with train.teacher: 1, and any replicate and shard"
            yield Problem(f"parallel.{way}", f"{n}, but a teacher is not divided within layers or windows; {allowed}")


def bytes_of(teacher: TrainedWeights) -> int:
    """Return the bytes of the teacher's weights in training, which are float32."""
    return sum(prod(tensor.shape) for tensor in teacher.weights.tensors.values()) * BYTES["float32"]


def check_teacher(teacher: TrainedWeights, config: Config, data: TrainingData, device: Device, world: World) -> None:
    """Raise UserError if the teacher reads another tokenizer's tokens, or does not fit into memory besides the run."""
    teacher.check_tokenizer(data, config.data.named, "train.teacher.path")
    shards = world.mesh.size(1) if world.mesh else 1
    needed = training_memory_of(config).total + bytes_of(teacher)
    what = "to train (float32 weights of the model and its teacher, gradients, optimizer state)"
    device.check_memory(needed // shards, what)
