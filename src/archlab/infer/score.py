"""Evaluation of a model on held-out text."""

from pathlib import Path

from archlab.config.core.base import Base
from archlab.config.core.text import note
from archlab.config.schema import Config
from archlab.config.tasks import Task
from archlab.config.training import check_objective, resolve_train
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.data.tokenizer import check_same, load
from archlab.data.training_data import TrainingData
from archlab.errors import UserError
from archlab.exchange.configs import is_run_folder, kind_of, load_config
from archlab.hf.folder import download, has_weights
from archlab.infer.int8 import to_int8
from archlab.infer.load import load_model, load_run, load_tokenizer
from archlab.model.decoder import Decoder
from archlab.training.checkpoint import has_checkpoint
from archlab.training.device import choose_device
from archlab.training.evaluate import evaluate
from archlab.training.run_folder import RunFolder


class HeldOutScore(Base):
    """Result of an evaluation on held-out text or on a task."""

    bits_per_byte: float | None
    """Bits per byte of text; null for a task, and for objectives that hide tokens."""
    accuracy: float | None
    """Fraction of a task's answers that are correct; null for text."""
    denoising_loss: float | None
    """Cross-entropy in nats per hidden token; null for objectives that hide no tokens."""
    denoising_accuracy: float | None
    """Fraction of the hidden tokens that are predicted; null for objectives that hide no tokens."""
    loss: float
    """Cross-entropy in nats per token that counts."""
    tokens: int
    """Number of held-out tokens that count: all tokens of the windows, or the hidden tokens, answers or targets."""
    context: int
    """Number of tokens that the model reads per window."""
    trained_steps: int
    """Number of training steps of the run. 0 for an untrained config or published weights."""
    trained: bool
    """Whether the weights come from a run or were published. False for initial weights."""
    corpus: str

    @property
    def result(self) -> str:
        if self.denoising_loss is not None:
            return f"{self.denoising_loss:.4f} nats per hidden token, {self.denoising_accuracy:.2%} of them correct"
        if self.bits_per_byte is None:
            return f"{self.accuracy:.2%} of the task's answers are correct"
        return f"{self.bits_per_byte:.4f} bits per byte"


def score(source: str, overrides: tuple[str, ...], tokens: int | None, *, int8: bool = False) -> HeldOutScore:
    """Score a run's last checkpoint, published weights, or an untrained config on held-out data.

    `tokens` is the number of held-out tokens; None means all. `int8` converts the weights of the layers and the head to
    int8. Raise UserError if the data was encoded with a tokenizer other than the model's, if the run was trained on the
    chosen held-out fold, or if the model's output is NaN or infinite.
    """
    config = load_config(source, *overrides)
    check_objective(config.model, config.train.objective)
    device = choose_device(config.train)
    data = open_training_data(config.data, config.model.vocab_size)
    folder = download(source) if kind_of(source) == "hub id" else Path(source)
    trained = _is_trained(folder)
    if trained and data.tokenizer:
        check_same(load_tokenizer(folder), load(data.tokenizer, data.special.documents[0]), source, config.data.named)
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
    held_out = Batches.of(config, data).held_out(train.eval_seq_len, tokens)
    result = evaluate(model.to(device.type), held_out, device)
    if not result.is_finite:
        raise UserError(f"{source}: the model's output is NaN or infinite, because its training diverged")
    return HeldOutScore(
        bits_per_byte=result.bits_per_byte,
        accuracy=result.accuracy,
        denoising_loss=result.denoising_loss,
        denoising_accuracy=result.denoising_accuracy,
        loss=result.loss,
        tokens=int(held_out.counted.sum()),
        context=held_out.windows.tokens.shape[1] - 1,
        trained_steps=steps,
        trained=trained,
        corpus=str(data),
    )


def _check_held_out(corpus: str | None, run_config: Config, config: Config, data: TrainingData) -> None:
    unread = run_config.data.unread_folds
    if corpus == data.fingerprint and config.data.fold not in unread:
        allowed = f"allowed: {', '.join(map(str, unread))}"
        raise UserError(f"data.fold: {config.data.fold}; the run was trained on this fold; {allowed}")
    if corpus != data.fingerprint and not isinstance(config.data.task, Task):
        note("this is not the run's own text, or it is split differently; the run may have been trained on parts of it")


def _is_trained(folder: Path) -> bool:
    if not is_run_folder(folder):
        return has_weights(folder)
    run = RunFolder(folder)
    run.verify()
    return has_checkpoint(run.checkpoints) or run.summary() is not None
