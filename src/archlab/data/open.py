"""From a config to what a run reads."""

from archlab.config.schema import DataConfig
from archlab.config.tasks import AnyTask
from archlab.data.prepare import open_data
from archlab.data.tasks.task_data import TaskData
from archlab.data.text_data import TextData
from archlab.data.training_data import TrainingData
from archlab.errors import UserError


def tokens_per_byte(config: DataConfig, vocab_size: int) -> float:
    """Of the whole text, which is prepared if it is not yet; UserError for a task."""
    if isinstance(config.task, AnyTask):
        raise UserError("a task has no bytes of text")
    parts = open_data(config, vocab_size).manifest.parts
    return sum(part.tokens for part in parts) / sum(part.bytes for part in parts)


def open_training_data(config: DataConfig, vocab_size: int) -> TrainingData:
    """The task, or the text, which is prepared if it is not yet."""
    if isinstance(config.task, AnyTask):
        return TaskData(config.task, vocab_size, config.fold)
    return TextData(open_data(config, vocab_size))
