"""Every config of the pairwise grid, flattened: a choice that `archlab flatten` forgets is seen here."""

from copy import deepcopy
from typing import Any

import grid
import pytest
import torch

from archlab.flatten.write import flatten

CHUNK = 40


@pytest.mark.parametrize("start", range(0, len(grid.grid()), CHUNK))
def test_the_flattened_file_gives_the_same_logits(start: int) -> None:
    tokens = grid.tokens(2)
    for i, overrides in enumerate(grid.grid()[start : start + CHUNK], start):
        names: dict[str, Any] = {}
        text = flatten(grid.config(i).model, "grid", most_lines=1000)  # layers that differ in everything take more
        exec(compile(text, f"grid {i}", "exec"), names)
        flat, model = names["Decoder"]().eval(), deepcopy(grid.model(i)).float()
        flat.load_state_dict(model.state_dict())
        with torch.no_grad():
            wanted = model(tokens)
            gap = ((flat(tokens) - wanted).abs().max() / wanted.std()).item()
        assert gap < 1e-3, overrides
