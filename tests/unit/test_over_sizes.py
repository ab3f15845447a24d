"""Gains over model sizes, against shares that are computed by hand."""

import re

import pytest

from archlab.evidence.claims import OverSizes
from archlab.evidence.over_sizes import sized_result
from archlab.evidence.results import ArmOfResults, Results, ResultsHeader
from archlab.report.ledger.words_over_sizes import heading, line, row
from archlab.study.record import Heading

SIZES = {300_000: 2.0, 3_000_000: 1.6}
LOSS = Heading(name="bits_per_byte", title="loss", unit="bits per byte", better="lower", source="log")


def results(differences: tuple[float, float]) -> Results:
    """Return results of an arm and its reference at two sizes, with these differences and a small scatter."""
    arms, values = [], {}
    for size, level, difference in zip(SIZES, SIZES.values(), differences, strict=True):
        for name, value in (("llama", level), ("relu", level + difference)):
            full = f"{name} at {size}"
            arms.append(
                ArmOfResults(
                    name=full, label=full, reference=None if name == "llama" else f"llama at {size}", factors={},
                    tuned={}, parameters=size, tokens=1000, size=size, plain_label=name,
                )
            )  # fmt: skip
            step = size / 1e9 if name == "relu" else 0.0
            values[full] = {seed: value + step * turn for seed, turn in enumerate((0, 1, -1))}
    about = ResultsHeader(
        study="steps", scale="cpu", digest="", date="2026-01-01", command="", environment={},
        corpus="a text: 1 MB", margin=None, first=None, outcomes=[LOSS], arms=arms,
    )  # fmt: skip
    return Results(about=about, values={LOSS.name: values}, folds={seed: seed for seed in range(3)})


def expected(*, leaves_out: bool) -> OverSizes:
    return OverSizes(
        study="steps", arm="relu", of="SwiGLU vs ReLU", leaves_out=leaves_out, topic="swiglu", trend="grows",
        because="b",
    )  # fmt: skip


def test_a_choice_that_the_arm_leaves_out_gains_what_the_arm_loses():
    found = sized_result(expected(leaves_out=True), results((0.04, 0.08)))
    assert [gain.parameters for gain in found.measured] == [300_000, 3_000_000]
    assert [gain.gain for gain in found.measured] == pytest.approx([0.04 / 2.04, 0.08 / 1.68])
    assert [gain.result for gain in found.measured] == ["better", "better"]
    for gain in found.measured:
        assert gain.low is not None
        assert gain.high is not None
        assert gain.gain is not None
        assert gain.low < gain.gain < gain.high
    assert found.trend == "grows"


def test_a_choice_that_the_arm_makes_gains_the_difference_itself():
    found = sized_result(expected(leaves_out=False), results((0.08, 0.04)))
    assert [gain.gain for gain in found.measured] == pytest.approx([-0.08 / 2.0, -0.04 / 1.6])
    assert [gain.result for gain in found.measured] == ["worse", "worse"]
    assert found.trend == "shrinks"


def test_published_pairs_of_known_size_stand_beside_the_results():
    found = sized_result(expected(leaves_out=True), results((0.04, 0.08)))
    gains = {gain.source: (gain.parameters, gain.gain) for gain in found.published}
    # Shazeer 2020, tables 1 and 2: log-perplexity 1.677 with ReLU and 1.636 with SwiGLU, T5-base.
    parameters, gain = gains["Shazeer 2020, log-perplexity at 524,288 steps"]
    assert parameters == 220_000_000
    assert gain == pytest.approx(0.041 / 1.677)


def test_the_change_over_sizes_counts_in_the_correction_for_several_comparisons():
    """Holm (1979): the smallest p of m comparisons is multiplied by m. Here m is two sizes and one change."""
    found = [one.comparison for one in results((0.04, 0.08)).compared().values() if one.comparison]
    assert len(found) == 3
    smallest = min(found, key=lambda comparison: comparison.p or 1)
    assert smallest.p_holm == pytest.approx(3 * (smallest.p or 1))


def test_a_line_names_the_text_and_the_gain_at_each_size():
    text = line(sized_result(expected(leaves_out=True), results((0.04, 0.08))))
    assert re.sub(r" \[[^]]*\]", "", text) == (
        "steps: SwiGLU vs ReLU on a text: gain +2.0% at 300K, +4.8% at 3M, grows (as predicted)"
    )
    assert text.count("[+") == 2


def test_rows_and_the_change_name_their_level_and_their_seeds():
    """Holm judges a difference of 0 at 5% after two rejections, and each of the other two at 5% / 2."""
    found = sized_result(expected(leaves_out=True), results((0.0, 0.08)))
    rows = [row(gain) for gain in found.measured]
    assert [cells[:2] for cells in rows] == [("steps: 300K", "3"), ("steps: 3M", "3")]
    assert [cells[2].partition("]")[2] for cells in rows] == ["", ", 97.5% interval"]
    assert re.search(r"changes by 0\.080 \[.*\] bits per byte, 97.5% interval; as predicted", heading(found))


def test_the_fewest_seeds_of_an_arm_are_known():
    few = results((0.04, 0.08))
    for name, values in few.values[LOSS.name].items():
        if name.endswith("3000000"):
            del values[2]
    assert (few.run_info.fewest_seeds, few.run_info.seeds) == (2, 3)
