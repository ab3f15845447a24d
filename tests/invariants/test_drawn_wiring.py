"""Block diagrams of the pairwise grid compute what the model computes.

The test applies the boxes of a diagram along its wires.
"""

from functools import partial

import grid
import pytest
import torch
from torch import Tensor

from archlab.config.schema import Config
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import Context, start_pass
from archlab.model.decoder import Decoder
from archlab.model.mlp import MLP
from archlab.model.positions import with_content_bias
from archlab.report.drawings.block import block_diagram
from tests.reference.drawn import Picture, Rect


def each_kind_once(config: Config) -> Config:
    """Return a model with as many layers as its diagram has frames, in the same order."""
    n = 1 if config.model.layers is None else len(set(config.model.layers.pattern))
    return config.model_copy(update={"model": config.model.model_copy(update={"n_layers": n})})


def apply(picture: Picture, model: Decoder, tokens_BT: Tensor, prefix: Tensor | None, box: Rect, *inputs: Tensor):
    frame = picture.frame_of(box)
    x = inputs[0] if inputs else None
    this_pass = start_pass(tokens_BT, None, None, prefix, None, torch.float64)
    if frame is not None:
        assert x is not None
        layer, of_layer = model.layers[frame], model.layer_configs[frame]
        name, *what = box.part.split()
        match what:
            case []:
                contexts = this_pass.contexts(model.layer_configs, model.first_alike, model.position_bias, None)
                return getattr(layer, name)(x, contexts[frame], None)
            case ["norm", slot]:
                return getattr(getattr(layer, f"{name}_norms"), slot)(x)
            case ["multiplier"]:
                return x * next(b.multiplier for b in of_layer.branches if b.name == name)
            case _ if name == "mlp":
                return inside_mlp(layer.mlp, " ".join(what), x)
            case _ if name == "attention":
                contexts = this_pass.contexts(model.layer_configs, model.first_alike, model.position_bias, None)
                return inside_attention(layer.attention, contexts[frame], " ".join(what), *inputs)
        raise AssertionError(box.part)
    embedding, head = model.embedding, model.head
    match box.part:
        case "embedding":
            assert x is tokens_BT
            return torch.nn.functional.embedding(tokens_BT, embedding.weight)
        case "embedding scale":
            return x * embedding.scale
        case "embedding widening":
            return (model.summed if model.config.embedding.widened == "sum" else embedding).widen(x)
        case "embedding norm":
            return (model.summed if model.config.embedding.norm == "sum" else embedding).norm(x)
        case "segments":
            return model.segments(torch.zeros_like(tokens_BT))
        case "head transform":
            return head.transform.activation(head.transform.dense(x))
        case "head norm":
            return head.transform.norm(x)
        case "positions":
            assert model.positions is not None
            return model.positions(this_pass.positions_BT, torch.float64)
        case "final norm":
            return model.norm(x)
        case "head narrowing":
            return head.narrow(x)
        case "head":
            return head.product(x, embedding.weight)
        case "head scale":
            return x * head.config.scale
        case "head cap":
            return head.config.softcap * torch.tanh(x / head.config.softcap)
    raise AssertionError(box.part)


def inside_mlp(mlp: MLP, part: str, x: Tensor) -> Tensor:
    config = mlp.config
    match part:
        case "up projection":
            return mlp.up(x)
        case "gate projection":
            return mlp.gate(x)
        case "activation":
            return mlp.activation(x)
        case "gate clamp":
            return x.clamp(max=config.clamp)
        case "up clamp":
            return x.clamp(-config.clamp, config.clamp)
        case "up offset":
            return x + config.up_offset
        case "sub norm":
            return mlp.sub_norm(x)
        case "down projection":
            return mlp.down(x)
    raise AssertionError(part)


def inside_attention(attention: MultiHeadAttention, context: Context, part: str, x: Tensor, *others: Tensor) -> Tensor:
    """Apply a part of attention. After their projection, queries, keys and values are [B, heads, T, width]."""
    config, H = attention.config, attention.config.n_heads
    match part.split():
        case ["query" | "key" | "value" as name, "projection"]:
            n = H if name == "query" else config.n_kv_heads
            return getattr(attention, name[0])(x).unflatten(-1, (n, -1)).transpose(1, 2)
        case ["query" | "key" | "value", "clip"]:
            return x.clamp(-config.clip_qkv, config.clip_qkv)
        case ["query" | "key" as name, "norm"]:
            return getattr(attention, f"{name[0]}_norm")(x)
        case ["query" | "key", "rotation"]:
            return context.rotation.rotate(x)
        case ["query", "temperature"]:
            grown = config.temperature
            steps_BT = (context.positions_BT + grown.offset).clamp(min=0) // grown.length
            return x * (1 + grown.beta * steps_BT.double().log1p())[:, None, :, None]
        case ["mix"]:
            bias = attention.position_bias
            bias_BHTS = context.bias_BHTS if bias is None else bias(context.distance_BTS, x)
            mixed = attention.attend(
                with_content_bias(x, bias),
                *others,
                context.mask_BTS,
                bias_BHTS,
                sinks_H=attention.sinks,
                training=False,
                is_cached=False,
            )
            return mixed.transpose(1, 2).flatten(-2)
        case ["sub", "norm"]:
            return attention.sub_norm(x)
        case ["gate", "projection"]:
            return attention.gate(x)
        case ["gate", "activation"]:
            return attention.gate_activation(x).repeat_interleave(config.out_width // config.gate_width, -1)
        case ["output", "projection"]:
            return attention.out(x)
    raise AssertionError(part)


WIRED = grid.covering("placement", "parallel", "mixer", "layers", "embedding", "position")
"""Rows with every pair of choices that change wires or boxes on the residual stream."""


@pytest.mark.parametrize("index", WIRED)
def test_a_diagram_computes_what_the_model_does(index):
    config = each_kind_once(grid.config(index))
    model, picture = grid.randomized(config), Picture(block_diagram(config, "tiny"))
    tokens_BT = grid.tokens(2, 9)
    prefix = grid.prefix(config, 2, 4)
    with torch.no_grad():
        drawn = picture.computed(tokens_BT, partial(apply, picture, model, tokens_BT, prefix))
        expected = model(tokens_BT, prefix=prefix)
    torch.testing.assert_close(drawn, expected, rtol=1e-9, atol=1e-9)
    assert len(picture.frames) == len(model.layers)


INSIDE = grid.covering(
    "heads", "mlp", "mlp_bias", "qk_norm", "clip", "temperature", "attention_sub_norm", "gate", "position"
)
"""Rows with every pair of choices that change boxes or wires inside a component."""


@pytest.mark.parametrize("index", INSIDE)
def test_an_inside_computes_what_its_component_does(index):
    config = each_kind_once(grid.config(index))
    model = grid.randomized(config)
    picture = Picture(block_diagram(config, "tiny", ["mlp", "attention"]))
    tokens_BT, prefix = grid.tokens(2, 9), grid.prefix(config, 2, 4)
    with torch.no_grad():
        drawn = picture.computed(tokens_BT, partial(apply, picture, model, tokens_BT, prefix))
        expected = model(tokens_BT, prefix=prefix)
    torch.testing.assert_close(drawn, expected, rtol=1e-9, atol=1e-9)
    parts = {box.part for box in picture.boxes}
    assert ("mlp down projection" in parts) == any(
        layer.mlp.kind in ("plain", "gated") for layer in model.layer_configs
    )
    assert ("mlp" in parts) == any(layer.mlp.kind == "moe" for layer in model.layer_configs)
    multi_head = [layer.attention.kind == "multihead" for layer in model.layer_configs]
    assert ("attention output projection" in parts) == any(multi_head)
