"""Block diagrams of the pairwise grid compute what the model computes: their boxes are run along their wires."""

from functools import partial

import pytest
import torch
from torch import Tensor

from archlab.config.schema import Config
from archlab.model.context import start_pass
from archlab.model.decoder import Decoder
from archlab.report.drawings.block import block_diagram
from tests.invariants import grid
from tests.reference.drawn import Picture, Rect


def each_kind_once(config: Config) -> Config:
    """With as many layers as there are frames in its picture, in their order."""
    n = 1 if config.model.layers is None else len(set(config.model.layers.pattern))
    return config.model_copy(update={"model": config.model.model_copy(update={"n_layers": n})})


def apply(picture: Picture, model: Decoder, tokens_BT: Tensor, prefix: Tensor | None, box: Rect, x: Tensor | None):
    frame = picture.frame_of(box)
    this_pass = start_pass(tokens_BT, None, prefix, None, torch.float64)
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
        raise AssertionError(box.part)
    embedding, head = model.embedding, model.head
    match box.part:
        case "embedding":
            assert x is tokens_BT
            return torch.nn.functional.embedding(tokens_BT, embedding.weight)
        case "embedding scale":
            return x * embedding.scale
        case "embedding widening":
            return embedding.widen(x)
        case "embedding norm":
            return embedding.norm(x)
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


WIRED = grid.covering("placement", "parallel", "mixer", "layers", "embedding", "position")
"""Rows with every pair of the choices that a picture has wires or boxes on the stream for."""


@pytest.mark.parametrize("index", WIRED)
def test_a_diagram_computes_what_the_model_does(index):
    config = each_kind_once(grid.config(index))
    model, picture = grid.randomised(config), Picture(block_diagram(config, "tiny"))
    tokens_BT = grid.tokens(2, 9)
    prefix = grid.prefix(config, 2, 4)
    with torch.no_grad():
        drawn = picture.computed(tokens_BT, partial(apply, picture, model, tokens_BT, prefix))
        expected = model(tokens_BT, prefix=prefix)
    torch.testing.assert_close(drawn, expected, rtol=1e-9, atol=1e-9)
    assert len(picture.frames) == len(model.layers)
