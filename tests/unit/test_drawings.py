"""Block diagrams: their parts, the positions of the parts, and their legibility."""

import re
from collections import Counter
from itertools import pairwise, product

import pytest

from archlab.atlas.models import rows
from archlab.atlas.table import remarks
from archlab.cli.app import main
from archlab.config.io import facts, presets, read_entry
from archlab.config.layers import distinct_layers, layer_configs
from archlab.exchange.configs import load_config
from archlab.report.charts.axes import covering
from archlab.report.drawings.block import block_diagram, draw
from archlab.report.drawings.diff_page import differing_choices, render
from archlab.report.drawings.inside import can_unfold
from archlab.report.drawings.svg import Frame, text_width
from archlab.report.drawings.turns import cycle
from archlab.report.lists import rounded
from published import add_half_a_model
from tests.reference.drawn import Picture, Rect
from tiny import config

PRESETS = sorted({*presets()} - {*facts()})
WITHOUT_INSIDE = {"mamba-2-2.7b", "mamba-2.8b", "falcon-mamba-7b"}


def drawn(name: str, *overrides: str) -> Picture:
    return Picture(block_diagram(load_config(name, *overrides), name))


def has_inside(name: str) -> bool:
    layers = distinct_layers(load_config(name).model)
    return any(can_unfold(branch.component) for layer in layers for branch in layer.branches)


def parts(picture: Picture, frame: int = 0) -> list[str]:
    """Return the boxes of a frame from bottom to top, in all columns."""
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


TWO_STACKS = {
    "t5": ("model.position=t5", "model.encoder={n_layers: 3, mlp.d_ff: 48, cross.n_kv_heads: 1}"),
    "transformer": (
        "model.norm={kind: layernorm, placement: post}",
        "model.position=sinusoidal",
        "model.dropout=0.1",
        "model.encoder={n_layers: 2}",
    ),
    "kinds": (
        "model.layers={local: {attention.window: 4}, full: {attention.gate: {per: head}}, pattern: [local, full]}",
        "model.n_layers=4",
        "model.mixer=short_conv",
        "model.encoder={n_layers: 9, mixer: none, cross: {gate: {per: element}}}",
    ),
}
"""Changes that turn the tiny model into one with an encoder."""


@pytest.mark.parametrize("unfold", [(), ("mlp", "attention", "cross")], ids=["folded", "unfolded"])
@pytest.mark.parametrize("name", TWO_STACKS)
def test_two_stacks_stand_beside_each_other(name, unfold):
    model = config(*TWO_STACKS[name])
    picture = Picture(block_diagram(model, "tiny", unfold))
    check_readable(picture)
    encoder = [box for box in picture.boxes if of_encoder(box)]
    decoder = [box for box in picture.boxes if not of_encoder(box)]
    assert max(box.x + box.width for box in encoder) < min(box.x for box in decoder)
    assert not [box.part for box in encoder if "cross" in box.part or "head" in box.part]
    n_layers = model.model.encoder.n_layers  # pyright: ignore[reportOptionalMemberAccess]
    assert {"source tokens", "target tokens", "logits", f"encoder layer × {n_layers}"} <= {*picture.labels}
    cells = [color for cell, color in picture.cells if of_encoder(cell)]
    assert len(cells) == n_layers
    assert not {*cells} & {color for cell, color in picture.cells if not of_encoder(cell)}


def of_encoder(rect: Rect) -> bool:
    return rect.part.startswith("encoder ")


def test_cross_attention_stands_between_attention_and_mlp():
    picture = Picture(block_diagram(config(*TWO_STACKS["t5"]), "tiny"))
    frame = next(i for i, frame in enumerate(picture.frames) if not of_encoder(frame))
    expected = [f"{name}{part}" for name in ("attention", "cross", "mlp") for part in (" norm before", "")]
    assert parts(picture, frame) == expected
    assert says(picture, "cross") == ["Cross-attention", "4 query, 1 KV head × 8", "sees the whole source"]
    assert "sees both sides" in says(picture, "encoder attention")
    assert "causal, all earlier keys" in says(picture, "attention")
    assert says(picture, "encoder mlp")[-1] == "d_ff 48"
    assert [says(picture, f"{side}embedding")[-1] for side in ("encoder ", "")] == ["shared by both stacks"] * 2
    assert any("3 encoder and 2 decoder layers" in label for label in picture.labels)


def says(picture: Picture, part: str) -> list[str]:
    return [text for box in picture.boxes if box.part == part for text, _, _ in box.texts]


def test_boxes_say_what_is_known_of_published_models():
    """Expected words are from the papers and their config.json."""
    gemma = drawn("gemma-3-4b")
    attention = says(gemma, "attention")
    assert "window 1,024" in attention
    assert "QK-norm: RMSNorm" in attention
    assert attention.count("8 query, 4 KV heads × 256") == 2
    assert [f.part for f in gemma.frames] == ["layer local", "layer full"]
    assert says(drawn("gpt-2"), "positions") == ["Learned positions", "1,024 × 768"]
    assert "8 of 256 SwiGLU experts, d_ff 2,048" in says(drawn("deepseek-v3"), "mlp")
    assert "Mamba-2" in says(drawn("mamba-2-2.7b"), "mixer")
    assert says(drawn("falcon-mamba-7b"), "mixer") == ["Mamba", "8,192, state 16", "norms of dt, B and C, no weight"]
    nemotron = ["Mamba-2", "128 × 64, state 128", "8 groups of B and C", "steps of at least 0.001"]
    assert says(drawn("nemotron-h-8b"), "mixer") == nemotron
    assert "Multi-query attention" in says(drawn("palm-540b"), "attention")
    assert says(drawn("gemma-2-9b"), "head cap") == ["capped at 30"]
    assert "scores capped at 50" in says(drawn("gemma-2-9b"), "attention")
    assert says(drawn("transformer-base"), "mlp dropout") == ["dropout 0.1"]
    assert says(drawn("transformer-base"), "final norm") == []


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("gemma-2-9b", ["(local, full) × 21", "local", "full"]),  # 42 layers that take turns
        ("gemma-3-4b", ["(local × 5, full) × 5, then local × 4", "local", "full"]),  # 34 = 5 * 6 + 4
        ("qwen3-next-80b-a3b", ["(delta × 3, full) × 12", "delta", "full"]),
        ("recurrentgemma-2b", ["(lru × 2, local) × 8, then lru × 2", "local", "lru"]),  # 26 = 8 * 3 + 2
        ("nemotron-h-8b", ["full: 4 of 52", "mlp: 24 of 52", "mamba: 24 of 52"]),  # they do not take turns
        ("deepseek-v3", ["dense × 3", "sparse × 58"]),  # three dense layers, then the others
        ("llama-3-8b", ["layer × 32"]),
    ],
)
def test_frames_say_how_kinds_of_layers_follow_each_other(name, labels):
    """Readers took two frames, `local × 21` and `full × 21`, for 21 layers followed by 21 others."""
    around = {"logits", "tokens", "1"}
    shown = [text for text in drawn(name).labels if text not in around and not text.isdigit()]
    assert sorted(shown[:-2]) == sorted(labels)


def test_turns_of_kinds_are_those_of_the_layers():
    """The label, written out, gives the layers again, for every pattern of three kinds and up to nine layers."""
    for n in range(2, 10):
        for kinds in product("abc", repeat=n):
            if found := cycle(kinds):
                inside, turns, rest = re.fullmatch(r"\((.+)\) × (\d+)(?:, then (.+))?", found.label).groups()  # pyright: ignore
                assert written_out(inside) * int(turns) + written_out(rest or "") == "".join(kinds)
                assert int(turns) >= 2
            else:
                assert not any("".join(kinds[:p]) * n == "".join(kinds) * p for p in range(1, n // 2 + 1))


def written_out(words: str) -> str:
    return "".join(kind * int(n or 1) for kind, n in re.findall(r"([abc])(?: × (\d+))?", words))


def test_the_heading_tells_the_active_parameters_of_a_mixture():
    """671B and 37B are published; the config also counts the head and the embedding of a token."""
    heading = next(text for text in drawn("deepseek-v3").labels if "parameters" in text)
    assert heading.startswith("671B parameters, 37.6B active · 61 layers")
    assert "active" not in " ".join(drawn("llama-3-8b").labels)


def unfolded(name: str, *branches: str) -> Picture:
    return Picture(block_diagram(load_config(name), name, branches))


def test_the_inside_of_a_gate_is_two_matrices_into_a_product():
    """The tutorial says so. llama-3-8b has widths 4096 and 14336, 32 query heads and 8 KV heads of 128."""
    picture = unfolded("llama-3-8b", "mlp", "attention")
    assert says(picture, "mlp gate projection") == ["Gate projection", "4,096 → 14,336"]
    assert says(picture, "mlp up projection") == ["Up projection", "4,096 → 14,336"]
    assert says(picture, "mlp down projection") == ["Down projection", "14,336 → 4,096"]
    assert len(picture.products) == 1
    assert "4,096 → 32 × 128" in says(picture, "attention query projection")
    assert "4,096 → 8 × 128" in says(picture, "attention key projection")
    assert says(picture, "attention query rotation") == ["Rotation", "RoPE, theta 500,000"]
    assert "32 heads, 4 per KV head" in says(picture, "attention mix")
    assert not {"mlp", "attention"} & {box.part for box in picture.boxes}
    assert {"SwiGLU MLP", "Grouped-query attention"} <= {*picture.labels}


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in WITHOUT_INSIDE])
def test_every_inside_can_be_read(name):
    assert has_inside(name)
    picture = unfolded(name, "mlp", "attention")
    check_readable(picture)


def test_a_cell_per_layer_has_the_color_of_its_frame():
    picture, layers = drawn("gemma-3-4b"), layer_configs(load_config("gemma-3-4b").model)
    in_order = sorted(picture.cells, key=lambda cell: -cell[0].y)
    assert [color for _, color in in_order] == ["kind-1" if l.attention.window is None else "kind-0" for l in layers]  # noqa: E741  # pyright: ignore
    assert Counter(color for _, color in in_order) == {"kind-0": 29, "kind-1": 5}


def inner_width(box: Rect) -> float:
    return max(text_width(text, size, bold=bold) for text, size, bold in box.texts)


def around(box: Rect) -> Rect:
    """Return the rectangle with some room on all sides."""
    return Rect(box.part, box.x - 8, box.y - 8, box.width + 16, box.height + 16)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_read(name):
    check_readable(drawn(name))


def check_readable(picture: Picture) -> None:
    """No box overlaps another, text is in its box, boxes are inside their frames or apart from them, and all is on the paper."""
    for i, box in enumerate(picture.boxes):
        assert inner_width(box) <= box.width - 8, box
        assert len(box.texts) * 13 < box.height, box
        assert not [other for other in picture.boxes[:i] if box.overlaps(other)], box
        assert not [frame for frame in picture.frames if frame.overlaps(around(box)) and not frame.holds(box)], box
    paper = Rect("paper", 0, 0, picture.width, picture.height)
    assert all(paper.holds(rect) for rect in (*picture.boxes, *picture.frames, *(cell for cell, _ in picture.cells)))
    assert not [box for box in picture.boxes for cell, _ in picture.cells if box.overlaps(cell)]
    check_wires(picture)


def check_wires(picture: Picture) -> None:
    """No wire runs through a box or a circle, and every arrow ends at a box, at a circle, at a fork or above everything else."""
    circles = [Rect("circle", x - 8, y - 8, 16, 16) for x, y in (*picture.pluses, *picture.products)]
    for wire in picture.wires:
        for (x1, y1), (x2, y2) in pairwise(wire):
            line = Rect("wire", min(x1, x2), min(y1, y2), abs(x1 - x2), abs(y1 - y2))
            for rect in (*picture.boxes, *circles):
                inner = Rect(rect.part, rect.x + 1, rect.y + 1, rect.width - 2, rect.height - 2)
                assert not inner.overlaps(line), (rect, line)
    ends = (*picture.boxes, *circles, *picture.insides)
    forks = {wire[0] for wire in picture.wires}
    top = min(y for _, y in picture.tips)
    for x, y in picture.tips:
        tip = Rect("tip", x - 0.5, y - 0.5, 1, 1)
        is_at_end = any(end.overlaps(tip) and not end.holds(tip) for end in ends)
        assert y == top or is_at_end or (x, y) in forks, (x, y)


def test_letters_are_as_wide_as_in_the_font():
    """Expected widths are from Arial's own table, in 1/1000 em."""
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
    n_layers = config().model.n_layers + 1
    a = config()
    b = config("model.norm.placement=double", "model.attention.softcap=30", f"model.n_layers={n_layers}")
    page = render(("a", a), ("b", b), {"model.attention.softcap": (None, 30.0)})
    first, second = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    marked = [re.findall(r'class="(?:label bold )?differs"[^>]*>([^<]+)', svg) for svg in (first, second)]
    assert marked == [[f"layer × {n_layers - 1}"], ["scores capped at 30", f"layer × {n_layers}"]]
    assert len(re.findall(r'class="box norm differs"', second)) == 2
    assert '<td data-label="a">-</td>' in page
    assert "<script" not in page


@pytest.mark.parametrize("name", PRESETS)
def test_kinds_with_the_same_boxes_share_a_frame_and_keep_their_text(name):
    """A line that only some kinds have begins with the name of the kind, so that nothing is lost or added to the
    boxes."""
    config = load_config(name)
    kinds = [layer.kind for layer in distinct_layers(config.model)]
    alone, together = draw(config, name), draw(config, name, merge=True)
    of_each, merged = ({text for text in drawing.texts if text[0] != "layers"} for drawing in (alone, together))
    named = {(part, text.removeprefix(f"{kind}: ")) for part, text in merged for kind in kinds if f"{kind}: " in text}
    plain = {(part, text) for part, text in merged if not text.startswith(tuple(f"{kind}: " for kind in kinds))}
    assert named | plain == of_each
    assert together.height <= alone.height
    assert together.width <= 1.1 * alone.width, "a little wider, because of the names of kinds"


def test_shared_frames_by_hand():
    texts = draw(load_config("gemma-2-9b"), "a", merge=True).texts
    assert {("attention", "local: window 4,096"), ("attention", "full: causal, all earlier keys")} <= texts
    frames = [
        shape.part for shape in draw(load_config("gemma-2-9b"), "a", merge=True).shapes if isinstance(shape, Frame)
    ]
    assert frames == ["layer local"]
    frames = [
        shape.part for shape in draw(load_config("deepseek-v3"), "a", merge=True).shapes if isinstance(shape, Frame)
    ]
    assert frames == ["layer dense", "layer sparse"], "one kind has experts, the other has none"


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0.08838834764831843, 0.0625), ["0.08839", "0.0625"]),
        ((0.12345671, 0.12345672), ["0.12345671", "0.12345672"]),
        ((None, 128256), ["-", "128256"]),
        (([1.23456, 2], "gelu_tanh"), ["[1.235, 2]", "gelu_tanh"]),
        ((1e-05, 500000.0), ["1.0e-05", "500000.0"]),
        ((123456.78901, 1.0), ["123456.78901", "1.0"]),
        (("v1.23456", 1.0), ["v1.23456", "1.0"]),
        ((3 * ["dense"] + 58 * ["sparse"], ["local", "full"]), ["dense × 3, sparse × 58", "[local, full]"]),
        ((5 * ["local", "full"], {}), ["(local, full) × 5", "no changes"]),
    ],
)
def test_long_numbers_are_rounded_unless_they_would_look_the_same(values, texts):
    assert [cell.text for cell in rounded(*values)] == texts


def test_what_changed_begins_with_the_most_important_choices():
    pair = (load_config(name) for name in ("llama-3-8b", "gemma-2-9b"))
    changed = differing_choices(*pair)
    assert [name for name, *_ in changed] == ["size", "attention", "MLP", "norm", "sees", "vocabulary"]
    assert ("norm", "RMSNorm, pre", "RMSNorm, double") in changed
    same = config(), config("train.lr=1e-4")
    assert differing_choices(*same) == []
    assert "The design choices are the same." in render(("a", same[0]), ("b", same[1]), {"train.lr": (1e-3, 1e-4)})


def test_an_encoder_is_compared_at_a_legible_size():
    two = config(*TWO_STACKS["t5"])
    page = render(("a", config()), ("b", two), {})
    least = [float(width) for width in re.findall(r"<svg[^>]*min-width: (\d+)px", page)]
    assert least == [pytest.approx(0.8 * Picture(block_diagram(two, "b")).width, abs=1)]
    assert 'class="diagrams wide"' in page
    assert "diagrams wide" not in render(("a", config()), ("b", config()), {})


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
            "--out is missing; `archlab draw` needs it: the .svg, .png or .pdf file to write\n",
        ),
        (("--out", "x.gif"), "--out is x.gif; allowed: a file name that ends in .svg, .png or .pdf\n"),
        (
            ("gpt-2-xl", "--out", "x.svg"),
            "draw takes one config; for two side by side, type: archlab diff gpt-2 gpt-2-xl --html pair.html\n",
        ),
        (("--out", "x.svg", "--unfold", "mpl"), "unfold: 'mpl'; did you mean mlp? allowed: attention, mlp, cross\n"),
        (
            ("--out", "x.svg", "--unfold", "mlp", "model.mlp.kind=moe", "model.mlp.d_ff=null"),
            "unfold: 'mlp'; the model has mlp of kind moe; only plain and gated MLPs can be unfolded\n",
        ),
        (
            ("--out", "x.svg", "--unfold", "cross"),
            "unfold: 'cross'; the model has no cross-attention; only the cross-attention of a model with an encoder can be "
            "unfolded\n",
        ),
        (("--out", "x"), "--out is x; allowed: a file name that ends in .svg, .png or .pdf\n"),
    ],
)
def test_draw_says_where_to_write(more, said, capsys):
    assert main(["draw", "gpt-2", *more]) == 2
    assert capsys.readouterr() == ("", said)


@pytest.mark.slow
def test_every_answer_about_a_model_that_cannot_be_built_says_what_is_shown(tmp_path, capsys, monkeypatch):
    """The picture and the first line say it."""
    name = add_half_a_model(monkeypatch, tmp_path)
    about, _ = read_entry(facts()[name])
    assert about
    assert about.cannot_build
    assert about.shown
    assert main(["draw", name, "--out", str(tmp_path / "x.svg")]) == 0
    assert capsys.readouterr().err.startswith(f"note: {name}: {about.shown}: {about.cannot_build}")
    labels = Picture((tmp_path / "x.svg").read_text()).labels
    assert any(label.startswith(f"{about.shown}: ") for label in labels)
    assert main(["check", name]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: {about.shown}: ")
    assert main(["check", name, "--json"]) == 0
    assert f"{name}: {about.shown}: " in capsys.readouterr().err
    assert main(["check", name, "--html", str(tmp_path / "x.html")]) == 0
    assert about.shown in (tmp_path / "x.html").read_text()
    (row,) = (row for row in rows() if row.preset == name)
    assert remarks(row)[0].startswith(f"facts only, {about.shown}: ")


def test_two_configs_are_compared_on_a_page(tmp_path, capsys):
    page = tmp_path / "pages" / "diff.html"
    assert main(["diff", "llama-3-8b", "gemma-3-4b", "--model-only", "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "model.attention.n_kv_heads" in text
    assert main(["diff", "gpt-2", "gpt-2-xl", "--json", "--html", str(page)]) == 2


@pytest.mark.parametrize("values", [(208, 240), (1.0, 1.0), (9.1, 13.4), (41_000, 80_000)])
def test_an_axis_of_similar_values_covers_them_and_little_else(values: tuple[float, float]) -> None:
    """Powers of ten, or 1, 2 and 5 times them, would leave most of the picture empty."""
    ticks = covering(values)
    low, high = min(values), max(values)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 3 <= len(ticks) <= 8
    assert ticks[-1] - ticks[0] <= 1.5 * max(high - low, 0.1 * high) + 1e-9
