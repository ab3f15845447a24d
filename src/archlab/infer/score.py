"""Evaluation of models on held-out text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archlab.config.core.base import Base
from archlab.config.core.merge import expand
from archlab.config.core.text import command_line, note
from archlab.config.io import build_config, overlay, parse_overrides
from archlab.config.schema import Config
from archlab.config.tasks import Task
from archlab.config.training import check_objective, resolve_train
from archlab.data.batch import ScoreName
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.data.tokenizer import check_same, load
from archlab.data.training_data import TrainingData
from archlab.errors import UserError, at
from archlab.exchange.configs import (
    folder_first,
    is_run_folder,
    load_config,
    read_named_config,
    source_kind,
    with_tokenizer,
)
from archlab.hf.folder import download, has_weights
from archlab.infer.int8 import to_int8
from archlab.infer.load import load_model, load_run, load_tokenizer
from archlab.infer.session import NOT_FINITE
from archlab.model.decoder import Decoder
from archlab.training.checkpoint import has_checkpoint
from archlab.training.device import Device, choose_device
from archlab.training.evaluate import WindowSums, predict
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
    dtype: str
    """Dtype of the matrix products, such as `bfloat16`. With `train.dtype: auto`, the machine decides."""
    corpus: str

    @property
    def measure(self) -> ScoreName:
        """Name of the field with the score: of the denoising loss, the bits per byte, or the accuracy."""
        if self.denoising_loss is not None:
            return "denoising_loss"
        return "accuracy" if self.bits_per_byte is None else "bits_per_byte"

    @property
    def value(self) -> float:
        """Score in the unit of `measure`."""
        return getattr(self, self.measure)

    @property
    def result(self) -> str:
        if self.denoising_loss is not None:
            return f"{self.denoising_loss:.4f} nats per hidden token, {self.denoising_accuracy:.2%} of them correct"
        if self.bits_per_byte is None:
            return f"{self.accuracy:.2%} of the task's answers are correct"
        return f"{self.bits_per_byte:.4f} bits per byte"


@dataclass(frozen=True)
class Scored:
    """Score of a model, and the sums over windows from which it is computed."""

    score: HeldOutScore
    windows: WindowSums


def score_all(
    sources: Sequence[str], overrides: Sequence[str], tokens: int | None, *, int8: bool = False
) -> list[Scored]:
    """Score run folders, published weights or untrained configs on the same windows of held-out data.

    The data, the objective, the length of the windows and the dtype are those of the first run folder, or of the first
    source if none is a run folder. `overrides` apply to all sources. `tokens` is the number of held-out tokens; None
    means all. `int8` converts the weights of the layers and the head to int8.

    Raise UserError if it is not clear which data to use, or if the data was encoded with a tokenizer other than a
    model's. Also raise it if a run was trained on the chosen held-out fold, or if a model's output is NaN or infinite.
    """
    sources = [folder_first(source) for source in sources]
    first = next((source for source in sources if is_run_folder(Path(source))), sources[0])
    if len(sources) > 1:
        _check_data_is_named(first, overrides)
    shared = _config_of_first(first, overrides)
    check_objective(shared.model, shared.train.objective)
    configs = [shared if source == first else _on_same_data(source, overrides, shared) for source in sources]
    recorded = RunFolder(Path(first)).environment().get("dtype") if is_run_folder(Path(first)) else None
    device, data = choose_device(shared.train, recorded), _opened(first, overrides, shared)
    subjects = [_Subject.of(source, config, data) for source, config in zip(sources, configs, strict=True)]
    return [subject.score(data, device, tokens, int8=int8) for subject in subjects]


def _opened(first: str, overrides: Sequence[str], shared: Config) -> TrainingData:
    """Return the data. If the text of the first source, a run folder, is gone, the error says how to name a copy."""
    try:
        return open_training_data(shared.data, shared.model.vocab_size)
    except UserError as error:
        path = shared.data.path
        if not is_run_folder(Path(first)) or _named_data(overrides) or shared.data.mixture or Path(path).exists():
            raise
        command = command_line("eval", first, "data.path=FOLDER")
        raise UserError(f"{error}\n{first} was trained on this text; if you have it elsewhere: {command}") from None


def _check_data_is_named(first: str, overrides: Sequence[str]) -> None:
    if _is_published(first) and not _named_data(overrides):
        raise UserError(
            "data.path: not set, and no source is a run folder, whose text all sources would be scored on; allowed: "
            "a text, or a folder made by `archlab data`"
        )


def _config_of_first(source: str, overrides: Sequence[str]) -> Config:
    """Return the config of the source that decides what is scored. Its own tokenizer encodes a text that is not the one
    of its run."""
    raw = read_named_config(source, overrides)
    if _is_published(source) or (is_run_folder(Path(source)) and _named_data(overrides)):
        raw = with_tokenizer(raw, source)
    return build_config(raw, overrides, source)


def _is_published(source: str) -> bool:
    return source_kind(source) in ("Hugging Face folder", "hub id")


def _named_data(overrides: Sequence[str]) -> set[str]:
    """Return which of the fields that name data are overridden."""
    data = expand(parse_overrides(overrides)[0]).get("data")
    return {"path", "mixture", "task"} & data.keys() if isinstance(data, dict) else set()


def _on_same_data(source: str, overrides: Sequence[str], shared: Config) -> Config:
    """Return the config of a source, with all settings of `shared` that decide what is scored and how."""
    fields = {"objective", "document_mask", "eval_seq_len", "dtype", "device"}
    same = {"data": shared.data.model_dump(), "train": resolve_train(shared).model_dump(include=fields)}
    config = build_config(overlay(read_named_config(source, overrides), same, Config), overrides, source)
    with at(source):
        check_objective(config.model, config.train.objective)
    return config


@dataclass(frozen=True)
class _Subject:
    """A model to score, whose data has been checked."""

    source: str
    config: Config
    folder: Path
    trained: bool

    @classmethod
    def of(cls, source: str, config: Config, data: TrainingData) -> "_Subject":
        folder = download(source) if source_kind(source) == "hub id" else Path(source)
        trained = _is_trained(folder)
        if trained and data.tokenizer:
            tokenizer = load(data.tokenizer, data.special.documents[0])
            own = load_tokenizer(folder)
            with at(config.data.field):
                check_same(own, tokenizer, source, config.data.named)
        if trained and is_run_folder(folder):
            _check_held_out(source, config, data)
        return cls(source, config, folder, trained)

    def score(self, data: TrainingData, device: Device, tokens: int | None, *, int8: bool) -> Scored:
        held_out = Batches.of(self.config, data).held_out(resolve_train(self.config).eval_seq_len, tokens)
        vocab_size, largest = self.config.model.vocab_size, int(held_out.windows.tokens.max())
        if largest >= vocab_size:
            raise UserError(
                f"{self.source}: model.vocab_size is {vocab_size}, but {self.config.data.named} has the token id "
                f"{largest}; allowed: {largest + 1} or more"
            )
        steps, model = self._load()
        model = to_int8(model) if int8 else model
        predictions = predict(model.to(device.type), held_out, device)
        result = predictions.score(held_out)
        if not result.is_finite:
            raise UserError(f"{self.source}: {NOT_FINITE}")
        score = HeldOutScore(
            bits_per_byte=result.bits_per_byte,
            accuracy=result.accuracy,
            denoising_loss=result.denoising_loss,
            denoising_accuracy=result.denoising_accuracy,
            loss=result.loss,
            tokens=int(held_out.counted.sum()),
            context=held_out.windows.tokens.shape[1] - 1,
            trained_steps=steps,
            trained=self.trained,
            dtype=str(device.dtype).removeprefix("torch."),
            corpus=str(data),
        )
        return Scored(score, predictions.by_window(held_out))

    def _load(self) -> tuple[int, Decoder]:
        """Return (steps trained, model)."""
        if not self.trained:
            return 0, Decoder(self.config.model, seed=self.config.train.seed)
        if is_run_folder(self.folder):
            return load_run(self.folder, self.config.model)
        return 0, load_model(self.folder, self.config.model)


def _check_held_out(run: str, config: Config, data: TrainingData) -> None:
    unread, corpus = load_config(run).data.unread_folds, RunFolder(Path(run)).environment().get("corpus")
    if corpus == data.fingerprint and config.data.fold not in unread:
        allowed = f"allowed: {', '.join(map(str, unread))}"
        raise UserError(f"data.fold: {config.data.fold}; {run} was trained on this fold; {allowed}")
    if corpus != data.fingerprint and not isinstance(config.data.task, Task):
        note(f"this is not the text of {run}, or it is split differently; {run} may have been trained on parts of it")


def _is_trained(folder: Path) -> bool:
    if not is_run_folder(folder):
        return has_weights(folder)
    run = RunFolder(folder)
    run.verify()
    return has_checkpoint(run.checkpoints) or run.summary() is not None
