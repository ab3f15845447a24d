"""Description of one llama.cpp architecture, and of the model in a GGUF file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from archlab.config.core.merge import Raw
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.limits import Limit, rounded
from archlab.exchange.gguf.numbers import Numbers
from archlab.hf.weight_map import Row

if TYPE_CHECKING:
    from gguf import GGUFWriter


@dataclass(frozen=True)
class Header:
    """Contents of a GGUF file that describe the model."""

    keys: Raw
    """Values by key, without the prefix of the architecture."""
    tensors: Mapping[str, Any]
    """Tensors by name. Their contents are not read yet."""
    rope: Raw
    """Values of `rope_parameters` in a config.json."""

    @property
    def whole_rope(self) -> Raw:
        """Values of `rope_parameters` without the fraction of rotated dimensions, for families that rotate every
        dimension."""
        return {name: value for name, value in self.rope.items() if name != "partial_rotary_factor"}

    @property
    def head_dim(self) -> int:
        return self.keys.get("attention.key_length", self.keys["embedding_length"] // self.keys["attention.head_count"])

    @property
    def has_qk_norm(self) -> bool:
        return "blk.0.attn_q_norm.weight" in self.tensors

    def per_layer(self, key: str, default: Any) -> list[Any]:
        """Return the value of a key for each layer. Raise UserError if a list has another length."""
        value, count = self.keys.get(key, default), self.keys["block_count"]
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise UserError(f"{key} has {len(values)} values; allowed: {count}, one for each layer")
        return values


SCALED = (
    "the GGUF file has no keys for the factors of the embedding, the logits and the branches; the weights were "
    "multiplied by them, in float32, and then rounded to the dtype of the file"
)


def always_idle(*names: str) -> Callable[[Raw], frozenset[str]]:
    """Return the function for `GGUFArchitecture.idle` that returns these keys for every file."""
    return lambda _keys: frozenset(names)


def has(key: str) -> Callable[[Raw], bool]:
    """Return the function for `GGUFArchitecture.belongs` that returns whether a file has a key whose value is neither
    0 nor false."""
    return lambda keys: bool(keys.get(key))


def lacks(key: str) -> Callable[[Raw], bool]:
    """Return the function for `GGUFArchitecture.belongs` that returns whether a file does not have a key."""
    return lambda keys: key not in keys


@dataclass(frozen=True)
class GGUFArchitecture:
    """Architecture of llama.cpp, for the models of one family.

    Its forward pass is in llama.cpp's `src/models/`. Its export is in `convert_hf_to_gguf.py`.
    """

    name: str
    """Value of the GGUF key `general.architecture`."""
    family: str
    """Family (`model_type`) of the models."""
    rows: Sequence[Row]
    """Weight mapping between tensors of the GGUF file and archlab's parameters."""
    limits: Sequence[Limit]
    """Checks for features of the family that llama.cpp cannot compute."""
    numbers: Numbers = field(default_factory=dict)
    """Parameters that the file contains as keys."""
    needs_output: bool = False
    """Whether the file must contain the output head even if the head is tied to the embedding."""
    read_more: Callable[[Header], Raw] = lambda _header: {}
    """Function that returns keys of a config.json that do not follow from a single key of the file."""
    write_more: Callable[["GGUFWriter", ModelConfig], None] = lambda _writer, _model: None
    """Function that writes keys that only this architecture reads from the file."""
    factors: Callable[[ModelConfig], Mapping[str, float]] = lambda _model: {}
    """Function that returns the factors of parameters that the file contains as products, because it has no keys for
    the factors."""
    log_multiplier: Callable[[ModelConfig], float] | None = None
    """Function that returns the value of `rope.scaling.yarn_log_multiplier`. In a file with this key, YaRN does not
    multiply cos and sin by a factor. None if the architecture does not have the key."""
    belongs: Callable[[Raw], bool] | None = None
    """Function that returns whether a file with these keys belongs to this family, and not to another with the same
    architecture. None if no key shows that a file belongs to it (see `registry.ALL`)."""
    idle: Callable[[Raw], frozenset[str]] = lambda _keys: frozenset()
    """Function that returns the keys that llama.cpp does not read. A file may contain any value for them, or lack
    them."""

    def check(self, model: ModelConfig) -> list[str]:
        """Return notes on small differences between the results of archlab and llama.cpp.

        Raise a UserError that lists everything llama.cpp cannot run.
        """
        problems = [line for limit in self.limits for line in limit(model)]
        if problems:
            listed = [f"  {line}" for line in dict.fromkeys(problems)]
            raise UserError("\n".join([f"llama.cpp's {self.name} cannot run this model exactly", *listed]))
        is_scaled = any(factor != 1 for factor in self.factors(model).values())
        return [*rounded(model), *([SCALED] if is_scaled else [])]
