"""The llama.cpp architecture of Llama 4."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from archlab.config.core.merge import Raw
from archlab.config.core.yaml_text import to_yaml_line
from archlab.config.layers import layer_configs
from archlab.config.model_schema import ModelConfig
from archlab.errors import UserError
from archlab.exchange.gguf.architecture import GGUFArchitecture, Header, always_idle
from archlab.exchange.gguf.limits import SILU, no_biases, positions_except_every, scalings, shared_expert
from archlab.exchange.gguf.settings import first_mixture
from archlab.exchange.gguf.tensors import AROUND, DENSE_WIDTH, EXPERT_WIDTH, EXPERTS, MLP, SHARED_WIDTH, norms, separate
from archlab.families.llama4_text import CHUNK, FLOOR, SCALE

if TYPE_CHECKING:
    from gguf import GGUFWriter

PERIOD = 4
"""Number of layers after which the pattern of attention repeats: chunks in all layers but the last, which has full
attention."""

WITHOUT_QK_NORM = 128
"""Number of experts of the only model (Maverick) that has no norm of queries and keys."""


def published_attention(model: ModelConfig) -> Iterator[str]:
    """Check the settings of attention that llama.cpp fixes.

    Layers with RoPE must have chunks of the published size. In the other layers, queries must grow with their position
    as published. The number of experts decides whether layers with RoPE have a norm of queries and keys.
    """
    if model.n_layers < PERIOD:
        yield f"model.n_layers is {model.n_layers}; allowed: {PERIOD} or more"
    mixture = first_mixture(layer_configs(model))
    has_norm = mixture is not None and mixture.experts != WITHOUT_QK_NORM
    growth = {"beta": SCALE, "length": FLOOR, "offset": 1}
    for i, layer in enumerate(layer_configs(model)):
        heads, is_full = layer.multi_head, (i + 1) % PERIOD == 0
        fields = {
            "blocks.size": (heads.blocks and heads.blocks.size, None if is_full else CHUNK),
            "temperature": (heads.temperature and heads.temperature.model_dump(), growth if is_full else None),
            "qk_norm.kind": (heads.qk_norm.kind, "rmsnorm" if has_norm and not is_full else "none"),
        }
        for field, (value, allowed) in fields.items():
            if value != allowed:
                yield f"model.attention.{field} is {to_yaml_line(value)} in layer {i}; allowed: {to_yaml_line(allowed)}"


def _step(model: ModelConfig) -> int:
    """Return the number of layers from one mixture of experts to the next; 0 for a model without mixtures."""
    kinds = [layer.mlp.kind for layer in layer_configs(model)]
    return kinds.index("moe") + 1 if "moe" in kinds else 0


def every_nth_is_a_mixture(model: ModelConfig) -> Iterator[str]:
    kinds, step = [layer.mlp.kind for layer in layer_configs(model)], _step(model)
    if not step or [kind == "moe" for kind in kinds] != [(i + 1) % step == 0 for i in range(len(kinds))]:
        yield f"model.mlp.kind is {', '.join(kinds)}; allowed: a mixture (moe) in every n-th layer, and no others"


def _keys(header: Header) -> Raw:
    """Return the values of Llama 4. Raise UserError if the file turns the chunks off."""
    if header.keys.get("attention.sliding_window") == 0:
        raise UserError("attention.sliding_window is 0; archlab imports only files without this key, which have chunks")
    return {
        "rope_parameters": header.whole_rope,
        "intermediate_size_mlp": header.keys[DENSE_WIDTH],
        "intermediate_size": header.keys.get(EXPERT_WIDTH),
        "interleave_moe_layer_step": header.keys.get("interleave_moe_layer_step"),
        "use_qk_norm": header.keys.get("expert_count") != WITHOUT_QK_NORM,
    }


def _add_step(writer: "GGUFWriter", config: ModelConfig) -> None:
    writer.add_interleave_moe_layer_step(_step(config))


LLAMA4 = GGUFArchitecture(
    "llama4", "llama4_text", [*AROUND, *separate(), *MLP, *EXPERTS, *norms()],
    [SILU, scalings("llama3"), no_biases, every_nth_is_a_mixture, shared_expert, positions_except_every(PERIOD),
     published_attention],
    read_more=_keys, write_more=_add_step, idle=always_idle(SHARED_WIDTH, DENSE_WIDTH),
)  # fmt: skip
