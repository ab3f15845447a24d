"""Functions that stay outside of compiled graphs."""

import torch

from archlab.model.graphs import outside_graphs


def test_what_stays_outside_is_run_as_it_stands():
    seen: list[bool] = []

    @outside_graphs
    def doubled(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return 2 * x

    model = torch.compile(lambda x: doubled(x + 1) - 1, backend="eager")
    for _ in range(2):
        assert model(torch.tensor(3)) == 7
    assert seen == [False, False]
    assert doubled(torch.tensor(3)) == 6
