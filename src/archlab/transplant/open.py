"""Opening of trained weights: a run folder, a Hugging Face folder or a hub id."""

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from archlab.config.model_schema import ModelConfig
from archlab.data.file_cache import cached
from archlab.digests import sha256
from archlab.exchange.configs import kind_of, load_config
from archlab.exchange.load import lazy_parameters
from archlab.hf.folder import own_file
from archlab.hf.tensors import weights_files
from archlab.infer.load import find_folder, newest_weights
from archlab.training.checkpoint import stored_weights, weights_digest
from archlab.training.run_folder import RunFolder
from archlab.transplant.weights import Architecture, LazyTensor, Weights


@dataclass(frozen=True)
class Start:
    """Trained weights from which a run begins."""

    name: str
    """Folder or hub id, as the user wrote it."""
    folder: Path
    weights: Weights
    digest: str
    """Digest of the model's config and of its weights."""
    step: int | None
    """Number of training steps of a run. None for a published model."""


def open_start(name: str) -> Start:
    """Open the trained weights of a run folder (its last checkpoint), a Hugging Face folder or a hub id.

    Tensors are read later, when they are needed. Raise UserError if there are no weights, or if they do not fit their
    config.
    """
    folder = find_folder(name)
    if kind_of(folder) == "run folder":
        return _of_run(name, folder)
    config, parameters = lazy_parameters(folder)
    tensors = {name: LazyTensor(tuple(shape), read) for name, (shape, read) in parameters.items()}
    files = [own_file(folder, file) for file in weights_files(folder)]
    content = cached("weights", files, lambda: [sha256(file) for file in files])
    return Start(name, folder, Weights(Architecture.of(config), tensors), _digest(config, content), None)


def _of_run(name: str, folder: Path) -> Start:
    RunFolder(folder).verify()
    run = load_config(folder)
    config, lora = run.model, run.train.lora
    step, checkpoint = newest_weights(folder)
    stored, forms = stored_weights(checkpoint, lora)
    tensors = {name: LazyTensor(tuple(form.shape), partial(stored.whole, name)) for name, form in forms.items()}
    merged = [str(lora.scale)] if lora else []
    digest = _digest(config, [weights_digest(checkpoint), *merged])
    return Start(name, folder, Weights(Architecture.of(config), tensors), digest, step)


def _digest(config: ModelConfig, content: list[str]) -> str:
    plain = json.dumps([config.model_dump(mode="json"), content], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]
