"""Choice of a few items at even intervals."""

from itertools import pairwise

import pytest

from archlab.spacing import evenly_spaced


@pytest.mark.parametrize(
    ("n", "most", "expected"),
    [(0, 5, []), (1, 5, [0]), (5, 5, [0, 1, 2, 3, 4]), (9, 5, [0, 2, 4, 6, 8]), (10, 4, [0, 3, 6, 9]), (3, 2, [0, 2])],
)
def test_items_are_chosen_at_even_intervals(n: int, most: int, expected: list[int]) -> None:
    assert evenly_spaced(range(n), most) == expected


@pytest.mark.parametrize("most", [2, 5, 12, 31])
def test_both_ends_are_chosen_and_no_item_twice(most: int) -> None:
    for n in range(2, 40):
        chosen = evenly_spaced(range(n), most)
        assert len(chosen) == min(n, most)
        assert (chosen[0], chosen[-1]) == (0, n - 1)
        gaps = {after - before for before, after in pairwise(chosen)}
        assert min(gaps) > 0
        assert max(gaps) - min(gaps) <= 1
