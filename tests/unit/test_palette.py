"""Colors of charts and pages: contrast with the paper, and distances as seen by readers with a color deficiency.

Contrast is that of WCAG 2.2. Deficiencies are simulated after Machado, Oliveira and Fernandes 2009 at full severity;
distances are Euclidean in CIELAB, in which about 2 can just be seen.
"""

import itertools
import re
from importlib import resources

import numpy as np
import pytest

from archlab.report.charts.marks import dash_turns
from archlab.report.charts.palette import MODES, PALETTES, Mode, colors
from archlab.report.drawings import curves

AA = 4.5
_EYES = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(color: str) -> np.ndarray:
    """Return the linear RGB of `#rrggbb`."""
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    darker, lighter = sorted(float(linear(color) @ _XYZ[1]) for color in (a, b))
    return (lighter + 0.05) / (darker + 0.05)


def lab(color: str, eyes: str) -> np.ndarray:
    xyz = np.clip(_EYES[eyes] @ linear(color), 0, 1) @ _XYZ.T / (0.95047, 1, 1.08883)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(a: str, b: str) -> float:
    """Return the smallest distance that any reader sees."""
    return min(float(np.linalg.norm(lab(a, eyes) - lab(b, eyes))) for eyes in _EYES)


def test_the_formulas_here_give_known_numbers():
    """Known values: black on white, the lightest gray that passes on white, and sRGB red in CIELAB."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert lab("#ff0000", "normal") == pytest.approx([53.24, 80.09, 67.2], abs=0.1)
    assert distance("#c98a00", "#8a9a1a") == pytest.approx(2.0, abs=0.1), (
        "two curves at this distance could not be told apart"
    )


@pytest.mark.parametrize("mode", MODES)
def test_labels_in_the_color_of_their_line_can_be_read(mode: Mode):
    palette = PALETTES[mode]
    lines = [
        color for n in range(1, 20) for is_ladder in (False, True) for color in colors(n, mode, is_ladder=is_ladder)
    ]
    for color in {palette.text, palette.faint, *palette.verdicts, *lines}:
        assert contrast(color, palette.paper) >= AA, color


@pytest.mark.parametrize("mode", MODES)
def test_everyone_can_distinguish_the_lines_of_a_picture(mode: Mode):
    """Up to 8 lines differ by color alone. More lines, and the steps of a ladder, differ by color and dashes."""
    apart = itertools.combinations(PALETTES[mode].distinct, 2)
    assert min(distance(*pair) for pair in apart) >= 13
    for n in range(9, 13):
        lines = list(zip(colors(n, mode), dash_turns(n), strict=True))
        for (a, a_dashes), (b, b_dashes) in itertools.combinations(lines, 2):
            assert distance(a, b) >= (4 if a_dashes != b_dashes else 11), (a, b)


@pytest.mark.parametrize("mode", MODES)
def test_a_ladder_grows_lighter_for_everyone(mode: Mode):
    steps = colors(7, mode, is_ladder=True)
    for eyes in _EYES:
        lightness = [lab(color, eyes)[0] for color in steps[1:]]
        assert lightness == sorted(lightness)
    assert min(distance(a, b) for a, b in itertools.combinations(steps, 2)) >= 9


def test_words_on_pages_can_be_read():
    """Every text color is legible on every background of a page."""
    style = (resources.files("archlab.report") / "templates" / "report.css").read_text(encoding="utf-8")
    modes = [dict(re.findall(r"--([\w-]+): (#\w{6})", root)) for root in re.findall(r":root \{(.*?)\}", style, re.S)]
    assert len(modes) == 2
    for mode_colors in modes:
        for text in ("text", "soft", "faint", "accent", "better", "worse", "diverged", "differs"):
            for ground in ("paper", "page", "wash"):
                assert contrast(mode_colors[text], mode_colors[ground]) >= AA, (text, ground)
        assert contrast(mode_colors["warn"], mode_colors["warn-wash"]) >= AA


def test_curves_have_dashes_of_their_own_and_the_key_shows_them():
    drawn = curves.activation_curves(reach=4).to_dict()["layer"][0]["encoding"]
    names = drawn["color"]["scale"]["domain"]
    styles = list(zip(colors(len(names), "light"), map(tuple, drawn["strokeDash"]["scale"]["range"]), strict=True))
    assert len(set(styles)) == len(names) == 8
    assert len({dashes for _, dashes in styles}) == 5
    assert drawn["strokeDash"]["legend"] == drawn["color"]["legend"]
