"""Numbers of the boxes in the workbench: they add up to the model, and every box with parameters has a row."""

import pytest

from archlab import load_config
from archlab.config.io import presets
from archlab.pricing.summary import cost
from archlab.report.drawings.block import draw
from archlab.report.drawings.svg import Box
from archlab.ui.bench.boxes import part_facts

_WITHOUT_PARAMETERS = ("scale", "cap", "dropout", "multiplier")
"""Last words of the names of boxes that never have parameters."""


@pytest.mark.parametrize("name", presets())
def test_the_boxes_contain_all_parameters(name: str):
    config = load_config(name)
    costs = cost(config)
    assert sum(part.n_parameters for part in part_facts(config, costs)) == costs.parameters.total


@pytest.mark.parametrize("name", presets())
def test_every_box_with_parameters_has_a_row(name: str):
    config = load_config(name)
    keys = {part.key for part in part_facts(config, cost(config))}
    in_layers = {key.partition("/")[2] for key in keys}
    for box in (shape for shape in draw(config, name).shapes if isinstance(shape, Box)):
        if box.part.endswith(_WITHOUT_PARAMETERS) or box.words.title == "Sinusoidal positions":
            continue
        assert (box.part in keys | in_layers) == ("no weight" not in box.words.lines)


def test_a_row_has_the_size_in_the_paper():
    rows = {
        (name, part.key): part.n_parameters
        for name in ("gpt-2", "bert-base", "t5-base")
        for part in part_facts(load_config(name), cost(load_config(name)))
    }
    assert rows["gpt-2", "positions"] == 1024 * 768
    assert rows["bert-base", "positions"] == 512 * 768
    assert rows["bert-base", "segments"] == 2 * 768
    assert rows["bert-base", "embedding norm"] == 2 * 768
    assert rows["bert-base", "head transform"] == 768 * 768 + 768
    assert rows["t5-base", "encoder final norm"] == 768
    assert ("bert-base", "final norm") not in rows
