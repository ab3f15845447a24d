"""Trained weights of a folder: a run folder, a Hugging Face folder or a hub id."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from archlab.config.core.text import note
from archlab.config.model_schema import ModelConfig
from archlab.config.tasks import Task
from archlab.data.file_cache import cached
from archlab.data.tokenizer import check_same, load
from archlab.data.training_data import TrainingData
from archlab.digests import sha256
from archlab.errors import UserError, at
from archlab.exchange.configs import find_folder, is_run_folder, load_config
from archlab.exchange.load import imported_record, lazy_parameters
from archlab.files import read_bytes
from archlab.hf.folder import TOKENIZER, companions, own_file
from archlab.hf.imported import IMPORTED, imported
from archlab.hf.tensors import weights_files
from archlab.pricing.units import plural
from archlab.training.checkpoint import newest_checkpoint, stored_weights, weights_digest
from archlab.training.run_folder import RunFolder
from archlab.transplant.weights import Architecture, Weights, stored


@dataclass(frozen=True)
class TrainedWeights:
    """Trained weights of a folder, opened to begin a run, to teach it, or to be converted."""

    name: str
    """Folder or hub id, as the user wrote it."""
    folder: Path
    weights: Weights
    digest: str
    """Digest of the model's config and of its weights."""
    step: int | None
    """Number of training steps of a run. None for a published model."""
    files: Mapping[str, bytes]
    """Files that come along with the weights, by name: the tokenizer, the chat template and, if the weights come from a
    published model, imported.json."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether the weights were trained on text."""
        return (self.folder / TOKENIZER).is_file()

    def check_tokenizer(self, data: TrainingData, data_name: str, field: str) -> None:
        """Raise UserError, with the field, if the weights read another tokenizer's tokens than those of the data. A
        folder without a tokenizer is accepted."""
        if data.tokenizer is None or not self.has_tokenizer:
            return
        is_run = is_run_folder(self.folder)
        own = RunFolder(self.folder).tokenizer() if is_run else load(self.folder / TOKENIZER)
        before = data.special.documents
        with at(field):
            check_same(own, load(data.tokenizer, before[0] if before else None), self.name, data_name)

    def read_folds(self, corpus: str, folds: Collection[int]) -> list[int]:
        """Return which of these folds of a text the weights have read, as far as this is known: a run records its text.
        `corpus` is the fingerprint of the tokens."""
        if self.step is None or RunFolder(self.folder).environment().get("corpus") != corpus:
            return []
        data = load_config(self.folder).data
        return [fold for fold in folds if not isinstance(data.task, Task) and fold not in data.unread_folds]


def open_weights(name: str) -> TrainedWeights:
    """Open the trained weights of a run folder (its last checkpoint), a Hugging Face folder or a hub id.

    Tensors are read again later, when they are needed. Raise UserError if there are no weights, if they do not fit
    their config, or if one of them is NaN or infinite.
    """
    folder = find_folder(name)
    if is_run_folder(folder):
        return _of_run(name, folder)
    config, parameters = lazy_parameters(folder)
    tensors = {tensor: stored(tensor, shape, read) for tensor, (shape, read) in parameters.items()}
    opened = [own_file(folder, file) for file in weights_files(folder)]

    def digests() -> list[str]:
        check_finite(name, ((tensor, x.read()) for tensor, x in tensors.items()))
        return [sha256(file) for file in opened]

    content = cached("finite weights", opened, digests)
    files = {IMPORTED: imported_record(folder, name).model_dump_json(indent=2).encode(), **companions(folder)}
    return TrainedWeights(
        name, folder, Weights(Architecture.of(config), tensors), _digest(config, content), None, files
    )


def _of_run(name: str, folder: Path) -> TrainedWeights:
    RunFolder(folder).verify()
    run = load_config(folder)
    config, lora = run.model, run.train.lora
    step, checkpoint = newest_weights(folder)
    parts, forms = stored_weights(checkpoint, lora)
    tensors = {tensor: stored(tensor, form.shape, partial(parts.whole, tensor)) for tensor, form in forms.items()}
    check_finite(name, ((tensor, x.read()) for tensor, x in tensors.items()))
    merged = [str(lora.scale)] if lora else []
    digest = _digest(config, [weights_digest(checkpoint), *merged])
    record = {IMPORTED: read_bytes(folder / IMPORTED)} if imported(folder) else {}
    files = {**record, **companions(folder)}
    return TrainedWeights(name, folder, Weights(Architecture.of(config), tensors), digest, step, files)


def check_finite(name: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError, with the names of tensors, if weights are NaN or infinite. `name` is the name of the model."""
    wrong = [tensor for tensor, values in tensors if not values.isfinite().all()]
    if wrong:
        more = f" and {plural(len(wrong) - 1, 'other tensor')}" if len(wrong) > 1 else ""
        raise UserError(f"{name}: values of {wrong[0]}{more} are NaN or infinite; allowed: finite weights")


def newest_weights(run: Path) -> tuple[int, Path]:
    """Return (step, path) of a run's newest checkpoint with undamaged weights. Raise UserError if there is none."""
    newest, damaged = newest_checkpoint(run / "checkpoints", weights_only=True)
    if newest is None:
        if damaged:
            raise UserError(f"{'; '.join(damaged)}; no other checkpoint exists; delete {run} and train again")
        ended = RunFolder(run).summary()
        why = "its training diverged and left no checkpoint" if ended else "no checkpoint yet; train it first"
        raise UserError(f"{run}: {why}")
    for damage in damaged:
        note(f"{damage}; using the checkpoint before it, from step {newest[0]}")
    return newest


def _digest(config: ModelConfig, content: list[str]) -> str:
    plain = json.dumps([config.model_dump(mode="json"), content], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]
