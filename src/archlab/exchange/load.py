"""Published weights to our models."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.config.problems import MOST_LISTED
from archlab.errors import UserError
from archlab.exchange.configs import read_model_config
from archlab.hf.family import Family
from archlab.hf.folder import CONFIG, companions, read_json
from archlab.hf.quantization import method
from archlab.hf.special_tokens import model_ids
from archlab.hf.tensors import FORMATS, Dequantised, Tensors, format_name
from archlab.hf.weights import Placed, fixed, of_further_tokens, placed
from archlab.model.arithmetic import at_least_float32
from archlab.model.decoder import Decoder, Head, TokenEmbedding
from archlab.model.moe import Experts
from archlab.model.origin import Origin
from archlab.model.projection import Projection
from archlab.model.recurrent import CausalConv
from archlab.model.rglru import BlockGate

MULTIPLIED = (TokenEmbedding, Projection, Experts, CausalConv, BlockGate, Head)
"""Modules whose parameters meet activations in products, so all need one format. Others (norms, routers, decays, sinks)
widen what they read and may be stored wide."""


def load_hf(folder: Path, dtype: torch.dtype | None = None, config: ModelConfig | None = None) -> Decoder:
    """The model of a Hugging Face folder, ready for inference, in the format it is stored in unless `dtype` is given.

    Where the file mixes formats, what is multiplied has the one that config.json names, or the most common one.
    `config`: another architecture that takes the same weights. One tensor is read at a time, so little more than the
    model itself is ever in memory. UserError lists every missing, surplus and mis-shaped tensor at once.
    """
    family, published = read_model_config(folder)
    model = _without_weights(config or published, folder)
    if problems := _fill_all(model, family, folder, dtype):
        count = f"{len(problems)} tensors do not fit" if len(problems) > 1 else "1 tensor does not fit"
        raise UserError("\n  ".join([f"{folder}: {count} {family.architecture}", *_first(problems)]))
    unfilled = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    assert not unfilled, f"{family.model_type}'s table has no row for {unfilled}"
    if dtype is None:
        _agree(model, read_json(folder / CONFIG))
    model.origin = read_origin(folder)
    return model.eval()


def read_origin(folder: Path) -> Origin:
    """What goes along unread: the family's name, special tokens, the tokenizer's files."""
    family = read_json(folder / CONFIG).get("model_type")
    return Origin(str(family), model_ids(folder), companions(folder))


def _agree(model: Decoder, published: Raw) -> None:
    """Bring all that is multiplied to one format, where the file has several."""
    modules = [module for module in model.modules() if isinstance(module, MULTIPLIED)]
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    found = Counter(parameter.dtype for parameter in parameters if parameter.dim() > 1)
    dtype_name = published.get("dtype") or published.get("torch_dtype")
    named = {format_name(dtype): dtype for dtype in FORMATS}.get(str(dtype_name))
    common = named if named and len(found) > 1 else found.most_common(1)[0][0]
    for parameter in parameters:
        parameter.data = parameter.data.to(common)


def _without_weights(config: ModelConfig, folder: Path) -> Decoder:
    try:
        with torch.device("meta"):
            return Decoder(config, seed=None)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond what torch counts
        reason = str(error).partition("\n")[0]
        raise UserError(f"{folder / CONFIG}: too large to be built: {reason}") from None


def check_hf(folder: Path) -> list[str]:
    """Return the reasons why a Hugging Face folder would not load, from its config and the headers of its weights.

    Content is read only where the reason could lie in it: a head that should be the embedding once more, a constant.
    """
    try:
        family, config = read_model_config(folder)
        read_origin(folder)
        return _first(_fill_all(_without_weights(config, folder), family, folder, None, only_look=True))
    except UserError as error:
        return [str(error)]


def _first(problems: Sequence[str]) -> list[str]:
    """Return as many problems as a person reads, and the number of the others."""
    more = len(problems) - MOST_LISTED
    return [*problems[:MOST_LISTED], *([f"and {more:,} more"] if more > 0 else [])]


def _fill_all(
    model: Decoder, family: Family, folder: Path, dtype: torch.dtype | None, only_look: bool = False
) -> list[str]:
    """Give the model its weights; what does not fit is returned in words."""
    config = model.config
    tensors = _named_as_table(family, _stored(folder, dtype, only_look))
    wanted = model.state_dict(keep_vars=True)
    problems: list[str] = []
    used: set[str] = set()
    otherwise = [row for row in placed(family.otherwise, config) if row.theirs in tensors]
    covered = {name for row in otherwise for name in row.ours}
    for row in [*placed(family.weights, config), *otherwise]:
        if not any(name in wanted for name in row.ours) or (row not in otherwise and covered.issuperset(row.ours)):
            continue
        used.update(row.parts)
        missing = [f"{name}  missing" for name in row.parts if name not in tensors]
        problems += missing or _fill(model, row, [tensors[name] for name in row.parts], wanted, dtype)
    for name, value in fixed(family.constants, config).items():
        used.add(name)
        if name in tensors and not tensors[name].is_number(value):
            problems.append(f"{name}  is another number than {value}, the only one that archlab can build")
    copies = {row.theirs for row in family.weights if row.names == ("head.weight",)} if config.head.tied else set()
    tables = (*family.weights, *family.otherwise)
    embeddings = [row.theirs for row in tables if row.names == ("embedding.weight",) and row.theirs in tensors]
    for name in tensors:
        if name in used or any(name.endswith(suffix) for suffix in family.buffers):
            continue
        if family.predicts_more and of_further_tokens(name, config.n_layers):
            continue
        if not tensors[name].read().numel():  # a part that is 0 wide
            continue
        if name not in copies:
            problems.append(f"{name}  surplus")
        elif not all(tensors[name].equals(tensors[embedding]) for embedding in embeddings):
            problems.append(f"{name}  differs from the embedding, to which config.json ties it")
    return problems


def _stored(folder: Path, dtype: torch.dtype | None, only_look: bool) -> Tensors | Dequantised:
    """The folder's tensors; those in few bits are bfloat16, as they were before, unless `dtype` is given."""
    how = method(read_json(folder / CONFIG).get("quantization_config"), str(folder / CONFIG))
    stored = Tensors(folder, shapes_only=only_look)
    return Dequantised(stored, how, dtype or torch.bfloat16) if how else stored


def _named_as_table(family: Family, tensors: Tensors | Dequantised) -> "dict[str, _Lazy]":
    """Old files lack the prefix that the class adds to all names but the head's."""
    known = {row.theirs for row in family.weights}
    bare = family.prefix and not any(name.startswith(family.prefix) for name in tensors)

    def full(name: str) -> str:
        return family.prefix + name if bare and name not in known else name

    return {full(name): _Lazy(tensors, name) for name in tensors}


class _Lazy:
    def __init__(self, tensors: Tensors | Dequantised, name: str) -> None:
        self._tensors, self._name = tensors, name

    def read(self) -> Tensor:
        """Without content where the folder is only looked at."""
        return self._tensors[self._name]

    def is_number(self, value: float) -> bool:
        """Whether it is one number, and that one."""
        # bfloat16 rounds.
        return self.read().numel() == 1 and math.isclose(self._content().item(), value, rel_tol=1e-2)

    def equals(self, other: "_Lazy") -> bool:
        """Whether it is a second copy of the other, perhaps in another format."""
        if self.read().shape != other.read().shape:
            return False
        theirs = other._content()
        return torch.equal(self._content().to(theirs.dtype), theirs)

    def _content(self) -> Tensor:
        return self._tensors.content(self._name)


def _fill(
    model: nn.Module, row: Placed, lazy: Sequence[_Lazy], wanted: dict[str, Any], dtype: torch.dtype | None
) -> list[str]:
    """Put one of their tensors, or a stack, where it belongs; what does not fit is returned in words."""
    parts = [part.read() for part in lazy]
    whole = row.conversion.join([torch.empty(wanted[name].shape, device="meta") for name in row.ours], row.layer).shape
    expected = whole[1:] if row.stack else whole
    named = zip(row.parts, parts, strict=True)
    wrong = [(name, part.shape) for name, part in named if part.shape != expected]
    if wrong:
        return [f"{name}  has shape {list(shape)}, expected {list(expected)}" for name, shape in wrong]
    strange = [(name, part.dtype) for name, part in zip(row.parts, parts, strict=True) if part.dtype not in FORMATS]
    if strange:
        allowed = ", ".join(map(format_name, FORMATS))
        return [f"{name}  has format {format_name(found)}; allowed: {allowed}" for name, found in strange]
    theirs = torch.stack(parts) if row.stack else parts[0]
    for name, ours in zip(row.ours, row.conversion.split(theirs, row.layer), strict=True):
        owner, _, last = name.rpartition(".")
        is_parameter = isinstance(wanted[name], nn.Parameter)
        # What no gradient moves is wide, as in the published code.
        value = (ours.to(dtype or ours.dtype) if is_parameter else at_least_float32(ours)).contiguous()
        value = value.clone() if value.data_ptr() == theirs.data_ptr() and len(row.ours) > 1 else value
        setattr(model.get_submodule(owner), last, nn.Parameter(value) if is_parameter else value)
    return []
