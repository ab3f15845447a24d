"""Conversion of a trained model to another architecture, without training."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from archlab.config.effects import check_effect
from archlab.config.io import override_texts
from archlab.config.schema import Config
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.displayed import Printed
from archlab.errors import UserError
from archlab.exchange.configs import is_run_folder, load_config
from archlab.exchange.load import read_origin
from archlab.exchange.save import check_new, save_pretrained
from archlab.infer.import_export import write_untrained
from archlab.model.decoder import Decoder
from archlab.training.initial_values import planned
from archlab.training.trained_weights import TrainedWeights, open_weights
from archlab.transplant.logits_change import COMPARED, LogitsChange, logits_change
from archlab.transplant.plan import Plan, set_values
from archlab.transplant.weights import LazyTensor, Weights, numbered

_DROPPED = "dropped"
_LONGEST = 1024
"""Largest number of tokens of the random text whose last logits are compared."""


@dataclass(frozen=True, repr=False)
class Converted(Printed):
    """Result of a conversion."""

    printed_by: ClassVar = "folders.print_converted"

    tensors: list[tuple[str, str]]
    """Names of tensors, those of equal layers in one row, and where their values come from."""
    changes: list[tuple[str, str, str]]
    """Name, effect and detail of each change, in order."""
    difference: LogitsChange
    form: str
    """Form in which the model was written: the name of a model family, or `a run folder`."""


def convert(source: str | Path, *overrides: str | Mapping[str, Any], out: str | Path) -> Converted:
    """Write a trained model with other values of some fields, in the form of the source. Nothing is trained.

    - `source`: a run folder, a Hugging Face folder or a hub id.
    - `overrides`: fields of the model to change, as in `archlab.load_config`. Also `train.start_layers` and
      `train.seed`.
    - `out`: the folder to write, which must be new or empty.

    Raise UserError if a field is not one of the model, or if the weights cannot become this model.

    >>> converted = archlab.convert("runs/a", {"model.attention.n_kv_heads": 1}, out="runs/multi-query")
    >>> converted.form, [name for name, effect, detail in converted.changes]
    ('a run folder', ['fewer key/value heads'])
    """
    texts, out = override_texts(*overrides), Path(out)
    check_effect(texts, "convert")
    check_new(out)
    trained = open_weights(str(source))
    config = load_config(trained.folder, f"train.start={trained.folder}", *texts)
    made = planned(trained, config, partial(_open_batches, config))
    of_run = ("start", "start_layers", "lora", "teacher")
    config = config.model_copy(update={"train": config.train.model_copy(update=dict.fromkeys(of_run))})
    model = Decoder(config.model, seed=None)
    set_values(model, config.model, config.train.seed, made.tensors)
    dtype = torch.float32 if is_run_folder(trained.folder) else _dtype_of_all(trained.weights)
    # The rounding of the written weights counts, but not that of a pass in 16 bits.
    difference = _compared(trained.weights, model.to(dtype).float(), config)
    form = _written(trained, config, model.to(dtype).eval(), out)
    changes = [(change.name, change.effect, change.report()) for change in made.changes]
    return Converted(_rows(made), changes, difference, form)


def _open_batches(config: Config) -> Batches:
    return Batches.of(config, open_training_data(config.data, config.model.vocab_size))


def _dtype_of_all(weights: Weights) -> torch.dtype:
    """Return the dtype of the weights, or float32 if they have several, which holds all of their values."""
    dtypes = {tensor.read().dtype for tensor in weights.tensors.values()}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _compared(weights: Weights, model: Decoder, config: Config) -> LogitsChange:
    before = Decoder(weights.model, seed=None)
    set_values(before, weights.model, 0, weights.tensors)
    vocab_size = min(weights.model.vocab_size, config.model.vocab_size)
    length = min(_LONGEST, weights.model.max_seq_len, config.model.max_seq_len)
    drawn = torch.randint(0, vocab_size, (1, length), generator=torch.Generator().manual_seed(0), device="cpu")
    drawn = drawn.to(model.embedding.weight.device)
    source = None if config.model.encoder is None else drawn.flip(1)
    before_TV, after_TV = (_logits(decoder, drawn, source) for decoder in (before, model))
    return logits_change(before_TV[-COMPARED:], after_TV[-COMPARED:], "random tokens")


@torch.no_grad()
def _logits(model: Decoder, tokens_BT: Tensor, source_BS: Tensor | None) -> Tensor:
    return model.eval()(tokens_BT, source=source_BS)[0].float()


def _written(trained: TrainedWeights, config: Config, model: Decoder, out: Path) -> str:
    if is_run_folder(trained.folder):
        write_untrained(out, config, model, trained.files)
        return "a run folder"
    model.origin = read_origin(trained.folder)
    try:
        return save_pretrained(model, out)
    except UserError as error:
        instead = "a run folder can hold every model: make one with `archlab import`, and convert that"
        raise UserError(f"{error}\n{instead}") from None


def _origin(tensor: LazyTensor) -> str:
    if not tensor.changes:
        return "kept"
    return f"{'' if tensor.is_trained else 'new: '}{', '.join(tensor.changes)}"


def _rows(made: Plan) -> list[tuple[str, str]]:
    """Return a row for each group of tensors that differ only in the index of their layer. `trained` precedes the names
    of layers that are dropped, because their indices are those in the trained model."""
    origins = [(name, _origin(tensor)) for name, tensor in made.tensors.items()]
    origins += [(name, "new") for name in made.initialized]
    origins += [(name, _DROPPED) for name in made.dropped]
    groups: dict[tuple[str, str], list[str]] = {}
    for name, origin in origins:
        found = re.fullmatch(r"((?:encoder\.)?layers\.\d+)\.(.+)", name)
        place, rest = (found[1], found[2]) if found else ("", name)
        groups.setdefault((rest, origin), []).append(place)
    return [(_row_name(places, rest, origin), origin) for (rest, origin), places in groups.items()]


def _row_name(places: Sequence[str], rest: str, origin: str) -> str:
    if not places[0]:
        return rest
    return f"{'trained ' if origin == _DROPPED else ''}{numbered(places)}: {rest}"
