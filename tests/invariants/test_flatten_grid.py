"""Every config of the pairwise grid, flattened: a choice that `archlab flatten` forgets is seen here."""

from typing import Any

import grid
import pytest
import torch

from archlab.errors import UserError
from archlab.flatten.write import flatten

CHUNK = 40


@pytest.mark.parametrize("start", range(0, len(grid.grid()), CHUNK))
def test_the_flattened_file_gives_the_same_logits(start: int) -> None:
    tokens, compared = grid.tokens(2), 0
    chunk = grid.grid()[start : start + CHUNK]
    for i, overrides in enumerate(chunk, start):
        names: dict[str, Any] = {}
        try:
            text = flatten(grid.config(i).model, "grid")
        except UserError:
            continue  # too many kinds of layers for 250 lines
        exec(compile(text, f"grid {i}", "exec"), names)
        flat, model = names["Decoder"]().eval(), grid.model(i).float()
        flat.load_state_dict(model.state_dict())
        with torch.no_grad():
            wanted = model(tokens)
            gap = ((flat(tokens) - wanted).abs().max() / wanted.std()).item()
        model.double()
        assert gap < 1e-3, overrides
        compared += 1
    assert compared > 0.9 * len(chunk)
