"""How well a model predicts held-out text."""

from pathlib import Path

from archlab.config.core.base import Base
from archlab.config.core.text import note
from archlab.config.schema import Config
from archlab.config.tasks import Task
from archlab.config.training import check_next_token, resolve_train
from archlab.data.open import open_training_data
from archlab.data.tokenizer import check_same, load
from archlab.data.training_data import TrainingData
from archlab.errors import UserError
from archlab.exchange.configs import kind_of, load_config
from archlab.hf.folder import download, has_weights
from archlab.infer.int8 import to_int8
from archlab.infer.load import is_run_folder, load_model, load_run, load_tokenizer
from archlab.model.decoder import Decoder
from archlab.training.checkpoint import has_checkpoint
from archlab.training.device import choose_device
from archlab.training.evaluate import evaluate
from archlab.training.run_folder import RunFolder


class HeldOutScore(Base):
    """Bits per byte, and what they were measured on."""

    bits_per_byte: float | None
    """null for a task."""
    accuracy: float | None
    """Share of a task's answers that are right; null for text."""
    loss: float
    """Cross-entropy in nats per token."""
    tokens: int
    """Held-out tokens scored."""
    context: int
    """Tokens per window; the first of each is only context."""
    trained_steps: int
    """0: the initial values of the config, or published weights."""
    trained: bool
    """Whether the weights are a run's or published ones."""
    corpus: str

    @property
    def result(self) -> str:
        """In words."""
        if self.bits_per_byte is None:
            return f"{self.accuracy:.2%} of the task's answers right"
        return f"{self.bits_per_byte:.4f} bits per byte"


def score(source: str, overrides: tuple[str, ...], tokens: int | None, *, int8: bool = False) -> HeldOutScore:
    """Score a run's last checkpoint, or an untrained config, on so many held-out tokens (None: all).

    `int8`: with the matrices of layers and head as 8-bit numbers.
    """
    config = load_config(source, *overrides)
    check_next_token(config.model)
    device = choose_device(config.train)
    data = open_training_data(config.data, config.model.vocab_size)
    folder = download(source) if kind_of(source) == "hub id" else Path(source)
    trained = _is_trained(folder)
    if trained and data.tokenizer:
        check_same(load_tokenizer(folder), load(data.tokenizer, data.document_token), source, config.data.named)
    if trained and is_run_folder(folder):
        _check_held_out(RunFolder(folder).environment().get("corpus"), load_config(source), config, data)
    if not trained:
        steps, model = 0, Decoder(config.model, seed=config.train.seed)
    elif is_run_folder(folder):
        steps, model = load_run(folder, config.model)
    else:
        steps, model = 0, load_model(folder, config.model)
    model = to_int8(model) if int8 else model
    train = resolve_train(config)
    held_out = data.held_out(train.eval_seq_len, tokens, masked=train.document_mask)
    found = evaluate(model.to(device.type), held_out, device)
    if not found.is_finite:
        raise UserError(f"{source}: the model's output is NaN or infinite: its training diverged")
    return HeldOutScore(
        bits_per_byte=found.bits_per_byte,
        accuracy=found.accuracy,
        loss=found.loss,
        tokens=len(held_out.tokens) * held_out.seq_len,
        context=held_out.seq_len,
        trained_steps=steps,
        trained=trained,
        corpus=str(data),
    )


def _check_held_out(corpus: str | None, trained: Config, asked: Config, data: TrainingData) -> None:
    """UserError for a fold of the run's own text that it was trained on; a note where nobody knows."""
    own = trained.data.fold
    if corpus == data.fingerprint and asked.data.fold != own:
        raise UserError(f"data.fold: {asked.data.fold}, which the run was trained on; allowed: {own}, which it was not")
    if corpus != data.fingerprint and not isinstance(asked.data.task, Task):
        note("this is another text than the run's own, or cut otherwise: it may have been trained on some of it")


def _is_trained(folder: Path) -> bool:
    if not is_run_folder(folder):
        return has_weights(folder)
    run = RunFolder(folder)
    run.verify()
    return has_checkpoint(run.checkpoints) or run.summary() is not None
