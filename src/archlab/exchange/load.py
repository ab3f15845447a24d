"""Loading of models from Hugging Face folders."""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from archlab.config.components.position import Rope, Sinusoidal
from archlab.config.core.merge import Raw
from archlab.config.core.text import note_once
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import MOST_LISTED
from archlab.errors import UserError
from archlab.exchange.hf_config import read_model_config
from archlab.families.registry import find_family
from archlab.hf.dequantize import Dequantized
from archlab.hf.family import ROPE_FREQUENCIES, Family
from archlab.hf.folder import CONFIG, companions, origin_of, read_json
from archlab.hf.imported import Imported
from archlab.hf.quantization import method
from archlab.hf.special_tokens import model_ids
from archlab.hf.tensors import FORMATS, Tensors, are_equal, format_name
from archlab.hf.towers import multimodal, read_text_values, text_name
from archlab.hf.weight_map import Placed, constant_values, is_mtp_tensor, placed
from archlab.model.arithmetic import at_least_float32
from archlab.model.decoder import Decoder, Head, TokenEmbedding
from archlab.model.moe import Experts
from archlab.model.origin import Origin
from archlab.model.positions import SinusoidalPositions
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv
from archlab.model.rglru import BlockGate

MULTIPLIED = (TokenEmbedding, Projection, Experts, CausalConv, BlockGate, Head)
"""Modules whose parameters are used in matrix products with activations. All of these parameters need the same dtype.

Other modules (norms, routers, decays, sinks) compute in at least float32 and may be stored in a wider dtype.
"""


def load_hf(folder: Path, dtype: torch.dtype | None = None, config: ModelConfig | None = None) -> Decoder:
    """Load the model of a Hugging Face folder for inference.

    - `dtype`: dtype of the parameters. None keeps the dtype of the file. If the file has several dtypes, the matrices
      get the one that config.json names, otherwise the most common one.
    - `config`: model config to use instead of the one in the folder. It must have the same weights.

    One tensor is read at a time, so the peak memory is little more than the model itself. If tensors are missing,
    surplus or of a wrong shape, raise a UserError that lists all of them.
    """
    family, published = read_model_config(folder)
    model = _without_weights(config or published, folder)
    _raise_if_any(_problems(model, family, folder), family, folder)
    model.load_state_dict(_state(model, family, folder, dtype), assign=True)
    if dtype is None:
        _unify_dtype(model, read_json(folder / CONFIG))
    model.origin = read_origin(folder)
    return model.eval()


def lazy_parameters(folder: Path) -> tuple[ModelConfig, dict[str, tuple[torch.Size, Callable[[], Tensor]]]]:
    """Return the config of a Hugging Face folder, and (shape, function that reads the tensor) for each parameter.

    Only the headers are read now. Raise UserError as `load_hf` does.
    """
    family, config = read_model_config(folder)
    model = _without_weights(config, folder)
    _raise_if_any(_problems(model, family, folder), family, folder)
    wanted = model.state_dict()
    tensors = _text_tensors(family, folder, _stored(folder))
    rows = _rows(family, config, tensors, wanted)
    return config, {
        name: (wanted[name].shape, partial(_value, row, tensors, wanted, i))
        for row in rows
        for i, name in enumerate(row.ours)
    }


def _state(model: Decoder, family: Family, folder: Path, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Return the parameters and buffers of the model by name. Parameters get the dtype `dtype`, by default that of the
    file."""
    tensors = _text_tensors(family, folder, _stored(folder, dtype))
    wanted = model.state_dict()
    parameters = {name for name, _ in model.named_parameters()}
    state: dict[str, Tensor] = {}
    for row in _rows(family, model.config, tensors, wanted):
        for name, value in zip(row.ours, _values(row, tensors, wanted), strict=True):
            # Buffers, which have no gradient, are at least float32, as in the published code.
            value = value.to(dtype or value.dtype) if name in parameters else at_least_float32(value)
            # A part of a fused tensor is copied, so that it does not keep the other parts in memory.
            state[name] = value.clone(memory_format=torch.contiguous_format) if row.ours[1:] else value.contiguous()
    return state


def _values(row: Placed, tensors: "Mapping[str, _Lazy]", wanted: Mapping[str, Tensor]) -> Sequence[Tensor]:
    """Return the parameters of a row. They are zeros if the folder lacks their tensors, which `zero_if_absent`
    allows."""
    if not tensors.keys() & row.parts:
        return [torch.zeros(wanted[name].shape) for name in row.ours]
    return row.conversion.split(row.whole([tensors[name].read() for name in row.parts]), row.layer)


def _value(row: Placed, tensors: "Mapping[str, _Lazy]", wanted: Mapping[str, Tensor], i: int) -> Tensor:
    return _values(row, tensors, wanted)[i]


def _raise_if_any(problems: Sequence[str], family: Family, folder: Path) -> None:
    if problems:
        count = f"{len(problems)} tensors do not fit" if len(problems) > 1 else "1 tensor does not fit"
        raise UserError("\n  ".join([f"{folder}: {count} {family.architecture}", *_first(problems)]))


def read_origin(folder: Path) -> Origin:
    """Return the data needed to save the model again: the name of the family, the special tokens and the tokenizer
    files."""
    family = find_family(read_text_values(folder).get("model_type"), f"{folder / CONFIG}: model_type")
    return Origin(family.model_type, model_ids(folder), companions(folder))


def imported_record(folder: Path, source: str, dtype: str | None = None) -> Imported:
    """Return what imported.json says about a published model. `source` is its folder or hub id, as the user wrote
    it. `dtype` is the dtype of its weights, if they all have the same."""
    origin = read_origin(folder)
    assert origin.family is not None
    return Imported(
        family=origin.family, special_ids=dict(origin.special_ids), dtype=dtype, source=origin_of(folder, source)
    )


def _unify_dtype(model: Decoder, published: Raw) -> None:
    modules = [module for module in model.modules() if isinstance(module, MULTIPLIED)]
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    counts = Counter(parameter.dtype for parameter in parameters if parameter.dim() > 1)
    dtype_name = published.get("dtype") or published.get("torch_dtype")
    named = {format_name(dtype): dtype for dtype in FORMATS}.get(str(dtype_name))
    common = named if named and len(counts) > 1 else counts.most_common(1)[0][0]
    for parameter in parameters:
        parameter.data = parameter.data.to(common)


def _without_weights(config: ModelConfig, folder: Path) -> Decoder:
    try:
        with torch.device("meta"):
            return Decoder(config, seed=None)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond torch's limits
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder / CONFIG}: the model is too large to build: {reason}") from None


def check_hf(folder: Path) -> list[str]:
    """Return the reasons why a Hugging Face folder cannot be loaded. An empty list means that it can.

    The function reads the config and the headers of the weights files. It reads the content of only two kinds of
    tensors: constants, and an output head that must equal the embedding.
    """
    try:
        family, config = read_model_config(folder)
        read_origin(folder)
        return _first(_problems(_without_weights(config, folder), family, folder))
    except UserError as error:
        return [str(error)]


def _first(problems: Sequence[str]) -> list[str]:
    more = len(problems) - MOST_LISTED
    return [*problems[:MOST_LISTED], *([f"and {more:,} more"] if more > 0 else [])]


def _problems(model: Decoder, family: Family, folder: Path) -> list[str]:
    """Return a message for each tensor that does not fit the model. Of most tensors, only the header is read."""
    config = model.config
    tensors = _text_tensors(family, folder, _stored(folder, headers_only=True))
    wanted = model.state_dict()
    problems: list[str] = []
    used: set[str] = set()
    for row in _rows(family, config, tensors, wanted):
        used.update(row.parts)
        if row.theirs.endswith(family.zero_if_absent) and row.theirs not in tensors:
            continue
        missing = [f"{name}  missing" for name in row.parts if name not in tensors]
        problems += missing or _wrong_parts(row, [tensors[name].read() for name in row.parts], wanted)
    for name, value in constant_values(family.constants, config).items():
        used.add(name)
        if name in tensors and not tensors[name].is_number(value):
            problems.append(f"{name}  is not {value}, the only value that archlab supports")
    for name in family.position_tables:
        used.add(name)
        if name in tensors and not tensors[name].contains_positions(_position_vectors(model)):
            problems.append(f"{name}  differs from sines and cosines, the only positions that archlab supports")
    copies = {*family.copies, *(row.theirs for row in family.rows_of("head.weight") if config.head.tied)}
    tables = (*family.weights, *family.alternatives)
    embeddings = [row.theirs for row in tables if row.names == ("embedding.weight",) and row.theirs in tensors]
    for name in tensors:
        if name in used or name.endswith((ROPE_FREQUENCIES, *family.ignored)):
            continue
        if family.has_mtp_layers and is_mtp_tensor(name, config.n_layers):
            continue
        if not tensors[name].read().numel():  # belongs to a part of width 0
            continue
        if name.endswith(".bias") and f"{name.removesuffix('bias')}weight" in used and tensors[name].is_zero():
            continue  # quantized files of old AutoGPTQ have a bias beside each weight
        if name not in copies:
            problems.append(f"{name}  surplus")
        elif not all(tensors[name].equals(tensors[embedding]) for embedding in embeddings):
            reason = "the model class ties" if name in family.copies else "config.json ties"
            problems.append(f"{name}  differs from the embedding, although {reason} the two")
    return problems


def _position_vectors(model: Decoder) -> nn.Module | None:
    """Return the position vectors of the model. For RoPE, these are the sines of its angles, then the cosines."""
    rope = model.config.position
    if not isinstance(rope, Rope):
        return model.positions
    return SinusoidalPositions(
        Sinusoidal(theta=rope.theta, layout="halves"), layer_configs(model.config)[0].multi_head.head_dim, 0
    )


def _rows(family: Family, config: ModelConfig, tensors: Container[str], wanted: Container[str]) -> Iterator[Placed]:
    """Yield the rows of the family's tables that hold parameters of the model."""
    alternatives = [row for row in placed(family.alternatives, config) if row.theirs in tensors]
    covered = {name for row in alternatives for name in row.ours}
    for row in [*placed(family.weights, config), *alternatives]:
        if any(name in wanted for name in row.ours) and (row in alternatives or not covered.issuperset(row.ours)):
            yield row


def _stored(folder: Path, dtype: torch.dtype | None = None, headers_only: bool = False) -> Tensors | Dequantized:
    """Return the folder's tensors. Quantized tensors are converted to `dtype`."""
    how = method(read_json(folder / CONFIG).get("quantization_config"), str(folder / CONFIG))
    stored = Tensors(folder, shapes_only=headers_only)
    return Dequantized(stored, how, dtype) if how else stored


def _text_tensors(family: Family, folder: Path, tensors: Tensors | Dequantized) -> "dict[str, _Lazy]":
    """Return the tensors of the text by full name. Print a note about the towers that are left out."""
    known = multimodal(folder)
    if known is None:
        return _with_full_names(family, tensors)
    named = {name: text_name(name, known) for name in tensors}
    towers = [name for name, ours in named.items() if ours is None]
    if towers:
        size = sum(tensors[name].numel() for name in towers)
        parts = " and ".join(part for part in known.towers if any(part in name for name in towers))
        note_once(
            f"{folder}: left out {parts}: {len(towers):,} tensors with {size:,} parameters; "
            "archlab reads only the text part, and computes it exactly for inputs without pictures and sound"
        )
    return {ours: _Lazy(tensors, name) for name, ours in named.items() if ours is not None}


def _with_full_names(family: Family, tensors: Tensors | Dequantized) -> "dict[str, _Lazy]":
    """Return the tensors by full name. Old files omit the family's prefix from all names except that of the head."""
    known = {row.theirs for row in family.weights}
    lacks_prefix = family.prefix and not any(name.startswith(family.prefix) for name in tensors)

    def full(name: str) -> str:
        return family.prefix + name if lacks_prefix and name not in known else name

    return {full(name): _Lazy(tensors, name) for name in tensors}


class _Lazy:
    def __init__(self, tensors: Tensors | Dequantized, name: str) -> None:
        self._tensors, self._name = tensors, name

    def read(self) -> Tensor:
        return self._tensors[self._name]

    def is_number(self, value: float) -> bool:
        """Return whether the tensor has a single element that equals `value` in the tensor's dtype."""
        return self.read().numel() == 1 and are_equal(
            torch.tensor([value], dtype=torch.float64), self._content().view(1)
        )

    def is_zero(self) -> bool:
        return not self._content().any()

    def contains_positions(self, positions: nn.Module | None) -> bool:
        """Return whether each row is the vector of a position, up to rounding in float32 and to the tensor's dtype."""
        content = self._content()
        if content.dim() != 2 or not content.is_floating_point() or positions is None:
            return False
        n_rows = len(content)
        expected = positions(torch.arange(n_rows)[None], torch.float64)[0]
        # Numbers just below 1 round by eps / 4. An angle in float32 has an error of up to n_rows times its eps.
        rounding = torch.finfo(content.dtype).eps / 4 + n_rows * torch.finfo(torch.float32).eps
        return content.shape == expected.shape and torch.allclose(content.double(), expected, rtol=0, atol=rounding)

    def equals(self, other: "_Lazy") -> bool:
        """Return whether the tensor equals `other` after conversion to the same dtype."""
        return self.read().shape == other.read().shape and are_equal(self._content(), other._content())

    def _content(self) -> Tensor:
        return self._tensors.content(self._name)


def _wrong_shapes(row: Placed, parts: Sequence[Tensor], shape: torch.Size) -> list[str]:
    """Return a message for each tensor whose shape is wrong. `shape` is that of the tensor that contains all of
    them."""
    if row.either_way and parts[0].dim() == len(shape) and parts[0].mT.shape == shape:
        return []
    expected = [shape[1:] if row.stack else shape] * len(parts)
    if row.pieces:
        expected = [torch.Size((n_rows, *shape[1:])) for n_rows in row.pieces.values()]
        same_rest = all(part.dim() == len(shape) and part.shape[1:] == shape[1:] for part in parts)
        if same_rest and sum(map(len, parts)) == shape[0]:
            return []
    return [
        f"{name}  has shape {list(part.shape)}, expected {list(right)}"
        for name, part, right in zip(row.parts, parts, expected, strict=True)
        if part.shape != right
    ]


def _wrong_parts(row: Placed, parts: Sequence[Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Return a message for each tensor of a row whose shape or dtype is wrong."""
    shape = row.conversion.join([wanted[name] for name in row.ours], row.layer).shape
    if wrong := _wrong_shapes(row, parts, shape):
        return wrong
    allowed = ", ".join(map(format_name, FORMATS))
    return [
        f"{name}  has dtype {format_name(part.dtype)}; allowed: {allowed}"
        for name, part in zip(row.parts, parts, strict=True)
        if part.dtype not in FORMATS
    ]
