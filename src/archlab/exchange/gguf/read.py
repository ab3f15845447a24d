"""Import of models from GGUF files, the format of llama.cpp."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archlab.config.problems import MOST_LISTED
from archlab.errors import UserError
from archlab.exchange.gguf.architecture import GGUFArchitecture
from archlab.exchange.gguf.config import is_tied, read_header, read_model_config
from archlab.exchange.gguf.numbers import read_numbers
from archlab.exchange.gguf.registry import architecture_of
from archlab.exchange.gguf.tensors import OUTPUT, ROPE_FACTORS, dequantized
from archlab.exchange.gguf.vocabulary import read_vocabulary
from archlab.extras import needs_extra
from archlab.hf.weight_map import COPY, placed
from archlab.model.decoder import Decoder
from archlab.model.origin import Origin


def read_gguf(file: Path) -> tuple[Decoder, list[str]]:
    """Load the model, the tokenizer and the chat templates of a GGUF file. Return the model and notes for the user.

    The parameters are float32. Quantized weights become the numbers that llama.cpp computes from them. Raise UserError
    if archlab cannot compute the model exactly.
    """
    values, stored = _opened(file)
    architecture = architecture_of(values, str(file))
    header = read_header(values, stored, architecture, str(file))
    config = read_model_config(header, architecture, str(file))
    with torch.device("meta"):
        model = Decoder(config, seed=None)
    state = read_numbers(architecture.numbers, values, config.n_layers, str(file))
    state |= _state(model, architecture, header.tensors, str(file))
    model.load_state_dict(state, assign=True)
    files, ids, notes = read_vocabulary(values, str(file))
    model.origin = Origin(architecture.family, ids, files)
    return model.eval(), notes


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a file by key, and its tensors, which are not read yet, by name."""
    with needs_extra("gguf", str(file)):
        from gguf import GGUFReader
    try:
        reader = GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
        return values, {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # the reader checks little, so a damaged file can cause any error
        raise UserError(f"{file}: not a GGUF file, or damaged: {error or type(error).__name__}") from None


def _state(model: Decoder, architecture: GGUFArchitecture, stored: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """Return the model's parameters from the tensors of a file."""
    wanted = model.state_dict()
    rows = [row for row in placed(architecture.rows, model.config) if any(name in wanted for name in row.ours)]
    problems = [*_unfit(rows, wanted, stored)]
    if problems:
        more = [f"and {len(problems) - MOST_LISTED:,} more"] if len(problems) > MOST_LISTED else []
        raise UserError("\n  ".join([f"{where}: tensors do not fit the model", *problems[:MOST_LISTED], *more]))
    state = dict[str, Tensor]()
    for row in rows:
        tensor = dequantized(stored[row.theirs]).view(_shape_of(row, wanted))
        values = row.conversion.split(tensor, row.layer)
        for name, value in zip(row.ours, values, strict=True):
            # Several rows with a conversion may each give a part of one parameter. The parts are added.
            assert name not in state or row.conversion is not COPY, f"two tensors give {name}"
            state[name] = state[name] + value if name in state else value.contiguous()
    return state


def _shape_of(row: Any, wanted: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Return the shape of the tensor that archlab writes for a row."""
    ours = [torch.empty(wanted[name].shape, device="meta") for name in row.ours]
    return tuple(row.conversion.join(ours, row.layer).shape)


def _unfit(rows: Sequence[Any], wanted: Mapping[str, Tensor], stored: Mapping[str, Any]) -> Iterator[str]:
    for row in rows:
        if row.theirs not in stored:
            yield f"{row.theirs}  missing"
            continue
        shape = tuple(int(n) for n in reversed(stored[row.theirs].shape))
        expected = _shape_of(row, wanted)
        if shape not in (expected, (1, *expected)):  # llama.cpp ignores first axes of size 1
            yield f"{row.theirs}  has shape {list(shape)}, expected {list(expected)}"
    ignored = {ROPE_FACTORS, *([OUTPUT] if is_tied(stored) else [])}
    for name in stored.keys() - {row.theirs for row in rows} - ignored:
        yield f"{name}  surplus"
