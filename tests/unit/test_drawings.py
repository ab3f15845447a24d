"""Block diagrams: what is in them, where it stands, and that it can be read."""

import re
from collections import Counter

import pytest

from archlab.cli.app import main
from archlab.config.io import facts, presets
from archlab.config.layers import layer_configs
from archlab.exchange.configs import load_config
from archlab.report.drawings.block import block_diagram
from archlab.report.drawings.diff_page import render
from archlab.report.drawings.lettering import text_width
from tests.reference.drawn import Picture, Rect
from tiny import config

PRESETS = sorted({*presets()} - {*facts()})


def drawn(name: str, *overrides: str) -> Picture:
    return Picture(block_diagram(load_config(name, *overrides), name))


def parts(picture: Picture, frame: int = 0) -> list[str]:
    """From the bottom of a frame to its top, in all columns."""
    return [box.part for box in picture.boxes if picture.frame_of(box) == frame]


SERIAL = {
    "pre": ["attention norm before", "attention", "mlp norm before", "mlp"],
    "post": ["attention", "attention norm stream", "mlp", "mlp norm stream"],
    "double": [
        "attention norm before", "attention", "attention norm after", "mlp norm before", "mlp", "mlp norm after",
    ],
    "output": ["attention", "attention norm after", "mlp", "mlp norm after"],
    "carried": ["attention norm before", "attention", "mlp norm before", "mlp"],
}  # fmt: skip


@pytest.mark.parametrize("placement", SERIAL)
def test_norms_stand_in_the_slots_of_their_placement(placement):
    picture = Picture(block_diagram(config(f"model.norm.placement={placement}"), "tiny"))
    assert parts(picture) == SERIAL[placement]
    assert len(picture.pluses) == 2
    by_part = {box.part: box.middle for box in picture.boxes}
    stream, column = by_part["embedding"], by_part["attention"]
    assert stream < column
    on_stream = {part for part, middle in by_part.items() if "norm" in part and abs(middle - stream) < 1}
    expected = {"post": {"attention norm stream", "mlp norm stream"}, "carried": set(SERIAL["carried"][::2])}
    last = set() if placement == "post" else {"final norm"}
    assert on_stream == expected.get(placement, set()) | last


def test_parallel_branches_stand_beside_each_other():
    shared, separate = drawn("gpt-j-6b"), drawn("falcon-40b")
    assert Counter(parts(shared)) == Counter(["attention norm before", "attention", "mlp"])
    assert Counter(parts(separate)) == Counter(["attention norm before", "mlp norm before", "attention", "mlp"])
    for picture in (shared, separate):
        by_part = {box.part: box for box in picture.boxes}
        assert by_part["attention"].middle < by_part["mlp"].x
        assert by_part["attention"].bottom == by_part["mlp"].bottom


def says(picture: Picture, part: str) -> list[str]:
    return [text for box in picture.boxes if box.part == part for text, _, _ in box.texts]


def test_boxes_say_what_is_known_of_published_models():
    """From the papers, and their config.json."""
    gemma = drawn("gemma-3-4b")
    attention = says(gemma, "attention")
    assert "window 1,024" in attention
    assert "QK-norm: RMSNorm" in attention
    assert attention.count("8 query, 4 KV heads × 256") == 2
    assert [f.part for f in gemma.frames] == ["layer local", "layer full"]
    assert says(drawn("gpt-2"), "positions") == ["Learned positions", "1,024 × 768"]
    assert "8 of 256 SwiGLU experts, d_ff 2,048" in says(drawn("deepseek-v3"), "mlp")
    assert "Mamba-2" in says(drawn("mamba-2-2.7b"), "mixer")
    assert "Multi-query attention" in says(drawn("palm-540b"), "attention")
    assert says(drawn("gemma-2-9b"), "head cap") == ["capped at 30"]
    assert "scores capped at 50" in says(drawn("gemma-2-9b"), "attention")
    assert says(drawn("transformer-base"), "mlp dropout") == ["dropout 0.1"]
    assert says(drawn("transformer-base"), "final norm") == []


def test_a_cell_per_layer_has_the_colour_of_its_frame():
    picture, layers = drawn("gemma-3-4b"), layer_configs(load_config("gemma-3-4b").model)
    in_order = sorted(picture.cells, key=lambda cell: -cell[0].y)
    assert [colour for _, colour in in_order] == ["kind-1" if l.attention.window is None else "kind-0" for l in layers]  # noqa: E741  # pyright: ignore
    assert Counter(colour for _, colour in in_order) == {"kind-0": 29, "kind-1": 5}


def inner_width(box: Rect) -> float:
    return max(text_width(text, size, bold=bold) for text, size, bold in box.texts)


def around(box: Rect) -> Rect:
    """With some room on all sides."""
    return Rect(box.part, box.x - 8, box.y - 8, box.width + 16, box.height + 16)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_read(name):
    """No box on another, text in its box, boxes in their frames or at a distance from them, and all on the paper."""
    picture = drawn(name)
    for i, box in enumerate(picture.boxes):
        assert inner_width(box) <= box.width - 8, box
        assert len(box.texts) * 13 < box.height, box
        assert not [other for other in picture.boxes[:i] if box.overlaps(other)], box
        assert not [frame for frame in picture.frames if frame.overlaps(around(box)) and not frame.holds(box)], box
    paper = Rect("paper", 0, 0, picture.width, picture.height)
    assert all(paper.holds(rect) for rect in (*picture.boxes, *picture.frames, *(cell for cell, _ in picture.cells)))
    assert not [box for box in picture.boxes for cell, _ in picture.cells if box.overlaps(cell)]


def test_letters_are_as_wide_as_in_the_font():
    """Arial's own table of widths, in 1/1000 em."""
    em = {"a": 556, "i": 222, "m": 833, "W": 944, "0": 556, " ": 278, "(": 333, "R": 722, "k": 500, ",": 278, "E": 667}
    spare = text_width("a", 1000) / 556
    assert {c: round(text_width(c, 1000) / spare) for c in em} == em
    assert spare >= 1.1


def test_it_is_drawn_for_light_and_dark():
    svg = block_diagram(config(), "tiny <&>")
    assert "tiny &lt;&amp;&gt;" in svg
    assert "prefers-color-scheme: dark" in svg
    classes = {c for found in re.findall(r'class="([^"]+)"', svg) for c in found.split()}
    assert {"attention", "mlp", "norm", "io"} <= classes


def test_what_differs_is_set_off_in_both():
    a, b = config(), config("model.norm.placement=double", "model.attention.softcap=30")
    page = render(("a", a), ("b", b), {"model.attention.softcap": (None, 30.0)})
    first, second = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    marked = [re.findall(r'class="differs"[^>]*>([^<]+)', svg) for svg in (first, second)]
    assert marked == [[], ["scores capped at 30"]]
    assert len(re.findall(r'class="box norm differs"', second)) == 2
    assert '<td data-label="a">-</td>' in page
    assert "<script" not in page


def test_draw_writes_svg_and_png(tmp_path, capsys):
    for name, begins in (("x.svg", b"<svg"), ("new/x.png", b"\x89PNG")):
        assert main(["draw", "gpt-2", "model.norm.placement=post", "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert "attention norm stream" in (tmp_path / "x.svg").read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            (),
            "--out: missing; `archlab draw` needs it: the file to write: an .svg, for light and dark, or a .png, light\n",
        ),
        (("--out", "x.pdf"), "--out: x.pdf; allowed: a file that ends in .svg or .png\n"),
        (("--out", "x"), "--out: x; allowed: a file that ends in .svg or .png\n"),
    ],
)
def test_draw_says_where_to_write(more, said, capsys):
    assert main(["draw", "gpt-2", *more]) == 2
    assert capsys.readouterr() == ("", said)


def test_two_configs_are_compared_on_a_page(tmp_path, capsys):
    page = tmp_path / "pages" / "diff.html"
    assert main(["diff", "llama-3-8b", "gemma-3-4b", "--model-only", "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "model.attention.n_kv_heads" in text
    assert main(["diff", "gpt-2", "gpt-2-xl", "--json", "--html", str(page)]) == 2
