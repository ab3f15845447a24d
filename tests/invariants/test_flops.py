"""FLOPs of matrix products, compared with torch's FlopCounterMode for every choice."""

import grid
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import archlab
from archlab.config.components.any_attention import AnyAttention
from archlab.config.components.position import Shaw, TransformerXL
from archlab.config.components.work import Pass, matrix_flops
from archlab.config.layers import layer_configs
from archlab.pricing.work import forward

LENGTH = 24


@pytest.mark.parametrize("index", range(len(grid.grid())))
def test_products_are_those_that_torch_counts(index: int) -> None:
    """The reference kernel multiplies every query with every key, so its pairs are computed here; the rest is exact."""
    model = grid.config(index).model
    decoder = archlab.Decoder(model, kernel="reference").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        decoder(torch.zeros(2, LENGTH, dtype=torch.int64), prefix=grid.prefix(grid.config(index), 2, 5))
    ours = matrix_flops(forward(model, Pass(2, LENGTH, counting="computed")))
    squares = 0
    for attention, position in ((layer.attention, layer.position) for layer in layer_configs(model)):
        if isinstance(attention, AnyAttention):
            widths = (attention.query_width + attention.v_dim) * LENGTH
            distances = position.max_distance + 1 if isinstance(position, Shaw) else 0
            distances = LENGTH if isinstance(position, TransformerXL) else distances
            widths += distances * attention.query_width
            squares += 2 * 2 * LENGTH * attention.n_heads * widths
    del ours["scores"]
    assert counter.get_total_flops() == ours.total() + squares
