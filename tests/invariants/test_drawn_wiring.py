"""Block diagrams of the pairwise grid compute what the model computes.

The test applies the boxes of a diagram along its wires.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import grid
import pytest
import torch
from torch import Tensor

from archlab.config.io import build_config
from archlab.config.schema import Config
from archlab.model.attention import MultiHeadAttention
from archlab.model.context import Context, start_pass
from archlab.model.decoder import Decoder, Stack
from archlab.model.layer import Layer
from archlab.model.masks import NoMask
from archlab.model.mlp import MLP
from archlab.model.positions import with_content_bias
from archlab.model.state import Source
from archlab.report.drawings.block import block_diagram
from tests.reference.drawn import Picture, Rect

IN_ENCODER = "encoder "
"""Beginning of the names of all parts of an encoder."""


def each_kind_once(config: Config) -> Config:
    """Return a model with as many layers as its diagram has frames, in the same order."""
    n = 1 if config.model.layers is None else len(set(config.model.layers.pattern))
    encoder = config.model.encoder and config.model.encoder.model_copy(update={"n_layers": 1})
    return config.model_copy(update={"model": config.model.model_copy(update={"n_layers": n, "encoder": encoder})})


def apply(
    picture: Picture, model: Decoder, tokens: Mapping[str, Tensor], prefix: Tensor | None, box: Rect, *inputs: Tensor
):
    if IN_ENCODER in box.part:
        assert model.encoder is not None
        part = box._replace(part=box.part.removeprefix(IN_ENCODER))
        return apply_in(model.encoder, picture, model, tokens["source tokens"], None, part, *inputs)
    if model.encoder is None:
        return apply_in(model, picture, model, tokens["tokens"], prefix, box, *inputs)
    # The decoder is mirrored: its boxes have their inputs from right to left.
    return apply_in(model, picture, model, tokens["target tokens"], prefix, box, *reversed(inputs))


def contexts_of(stack: Stack, tokens_BT: Tensor, prefix: Tensor | None, source_BSD: Tensor | None) -> list[Context]:
    """Return the context of each layer of a stack, with the encoder's output if a box has it as an input."""
    this_pass = start_pass(tokens_BT, None, None, prefix, None, torch.float64)
    if source_BSD is not None:
        source = Source(torch.ones(source_BSD.shape[:2], dtype=torch.bool), is_padded=False, hidden_BSD=source_BSD)
        this_pass = replace(this_pass, source=source)
    return this_pass.contexts(stack.layer_configs, stack.first_alike, stack.position_bias, None)


def apply_in(
    stack: Stack,
    picture: Picture,
    model: Decoder,
    tokens_BT: Tensor,
    prefix: Tensor | None,
    box: Rect,
    *inputs: Tensor,
):
    frames = [frame for frame in picture.frames if frame.part.startswith(IN_ENCODER) == (stack is model.encoder)]
    frame = next((i for i, frame in enumerate(frames) if frame.holds(box)), None)
    x = inputs[0] if inputs else None
    if frame is not None:
        assert x is not None
        layer, of_layer = cast(Layer, stack.layers[frame]), stack.layer_configs[frame]
        name, *what = box.part.split()
        match what:
            case [] if name == "cross":
                _, source_BSD = inputs
                return layer.cross(x, contexts_of(stack, tokens_BT, prefix, source_BSD)[frame].cross, None)
            case []:
                assert len(inputs) == 1
                return getattr(layer, name)(x, contexts_of(stack, tokens_BT, prefix, None)[frame], None)
            case ["scale"] if name == "stream":
                return x * layer.stream_scale
            case ["norm", slot]:
                return getattr(getattr(layer, f"{name}_norms"), slot)(x)
            case ["multiplier"]:
                return x * next(b.multiplier for b in of_layer.branches if b.name == name)
            case _ if name == "mlp":
                return inside_mlp(layer.mlp, " ".join(what), x)
            case _ if name == "attention":
                context = contexts_of(stack, tokens_BT, prefix, None)[frame]
                return inside_attention(layer.attention, context, " ".join(what), *inputs)
            case _ if name == "cross":
                # The context of cross-attention has no more than a mask, which hides nothing.
                n_keys = inputs[1].shape[-2] if what == ["mix"] else 0
                context = replace(contexts_of(stack, tokens_BT, prefix, None)[frame], rotation=None, bias_BHTS=None)
                context = replace(context, mask_BTS=NoMask(tokens_BT.shape[1], n_keys, tokens_BT.device))
                return inside_attention(layer.cross, context, " ".join(what), *inputs)
        raise AssertionError(box.part)
    embedding, head = model.embedding, model.head
    match box.part:
        case "embedding":
            assert x is tokens_BT
            return torch.nn.functional.embedding(tokens_BT, embedding.weight)
        case "embedding scale":
            return x * embedding.scale
        case "embedding widening":
            return (stack.summed if model.config.embedding.widened == "sum" else embedding).widen(x)
        case "embedding norm":
            return (stack.summed if model.config.embedding.norm == "sum" else embedding).norm(x)
        case "segments":
            return model.segments(torch.zeros_like(tokens_BT))
        case "head transform":
            return head.transform.activation(head.transform.dense(x))
        case "head norm":
            return head.transform.norm(x)
        case "positions":
            assert stack.positions is not None
            return stack.positions(
                start_pass(tokens_BT, None, None, prefix, None, torch.float64).positions_BT, torch.float64
            )
        case "final norm":
            return stack.norm(x)
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
            name = "key" if config.keys_as_values and name == "value" else name
            return getattr(attention, name[0])(x).unflatten(-1, (n, -1)).transpose(1, 2)
        case ["query" | "key" | "value", "clip"]:
            return x.clamp(-config.clip_qkv, config.clip_qkv)
        case ["query" | "key" | "value" as name, "norm"]:
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
        drawn = picture.computed({"tokens": tokens_BT}, partial(apply, picture, model, {"tokens": tokens_BT}, prefix))
        expected = model(tokens_BT, prefix=prefix)
    torch.testing.assert_close(drawn, expected, rtol=1e-9, atol=1e-9)
    assert len(picture.frames) == len(model.layers)


INSIDE = grid.covering(
    "heads", "mlp", "mlp_bias", "qk_norm", "clip", "temperature", "attention_sub_norm", "gate", "position", "values"
)
"""Rows with every pair of choices that change boxes or wires inside a component."""


@pytest.mark.parametrize("index", INSIDE)
def test_an_inside_computes_what_its_component_does(index):
    config = each_kind_once(grid.config(index))
    model = grid.randomized(config)
    picture = Picture(block_diagram(config, "tiny", ["mlp", "attention"]))
    tokens_BT, prefix = grid.tokens(2, 9), grid.prefix(config, 2, 4)
    with torch.no_grad():
        drawn = picture.computed({"tokens": tokens_BT}, partial(apply, picture, model, {"tokens": tokens_BT}, prefix))
        expected = model(tokens_BT, prefix=prefix)
    torch.testing.assert_close(drawn, expected, rtol=1e-9, atol=1e-9)
    parts = {box.part for box in picture.boxes}
    assert ("mlp down projection" in parts) == any(
        layer.mlp.kind in ("plain", "gated") for layer in model.layer_configs
    )
    assert ("mlp" in parts) == any(layer.mlp.kind == "moe" for layer in model.layer_configs)
    multi_head = [layer.attention.kind == "multihead" for layer in model.layer_configs]
    assert ("attention output projection" in parts) == any(multi_head)


TWO_STACKS = {
    "t5": "{position: t5, encoder: {n_layers: 3, mlp.d_ff: 20, cross: {n_kv_heads: 2}}}",
    "transformer": "{norm: {kind: layernorm, placement: post}, position: sinusoidal, embedding: {scale: sqrt_d_model}, "
    "mlp: {kind: plain, bias: true}, head: {tied: true}, encoder: {n_layers: 3}}",
    "bart": "{norm: {kind: layernorm, placement: post}, position: learned, embedding: {norm: sum}, "
    "head: {tied: true, bias: true}, encoder: {n_layers: 1}}",
    "double": "{norm.placement: double, encoder: {n_layers: 2}}",
    "output": "{norm.placement: output, attention.qk_norm: {kind: rmsnorm}, encoder: {n_layers: 2}}",
    "carried": "{norm.placement: carried, encoder: {n_layers: 2, norm.placement: pre}}",
    "post below pre": "{block: {attention_multiplier: 0.5, mlp_multiplier: 0.7}, "
    "encoder: {n_layers: 2, norm.placement: post, position: sinusoidal}}",
    "parallel encoder": "{position: alibi, encoder: {n_layers: 2, block.parallel: shared}}",
    "narrow": "{position: learned, embedding: {width: 8, widened: sum, norm: sum}, encoder: {n_layers: 2}}",
    "kinds": "{mixer: short_conv, layers: {local: {attention.window: 4}, full: {attention.gate: {per: head}}, "
    "pattern: [local, full]}, encoder: {n_layers: 2, mixer: none, cross: {gate: {per: element}, clip_qkv: 0.9}}}",
}


@pytest.mark.parametrize("unfold", [(), ("mlp", "attention", "cross")], ids=["folded", "unfolded"])
@pytest.mark.parametrize("name", TWO_STACKS)
def test_a_diagram_of_two_stacks_computes_what_the_model_does(name, unfold):
    config = each_kind_once(build_config(grid.BASE, (f"model={TWO_STACKS[name]}",)))
    model, picture = grid.randomized(config), Picture(block_diagram(config, "tiny", unfold))
    tokens = {"source tokens": grid.tokens(2, 7, seed=1), "target tokens": grid.tokens(2, 9)}
    with torch.no_grad():
        drawn = picture.computed(tokens, partial(apply, picture, model, tokens, None))
        expected = model(tokens["target tokens"], source=tokens["source tokens"])
    torch.testing.assert_close(drawn, expected, rtol=1e-9, atol=1e-9)
    assert len(picture.frames) == len(model.all_layers)
    of_cross = "cross query projection" if unfold else "cross"
    assert [box.part for box in picture.boxes].count(of_cross) == len(model.layers)
