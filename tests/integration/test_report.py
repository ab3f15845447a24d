"""Report of a study: one file that loads nothing, names everything and executes nothing that a user wrote."""

import csv
import io
import json
import re
from base64 import b64decode
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import altair as alt
import jsonschema
import pytest
from rich.console import Console
from vl_convert import vegalite_to_svg

import sample_study
from archlab.cli.study import present
from archlab.errors import UserError
from archlab.report.charts.axes import axis, logarithmic, plain, spaced, without_outliers
from archlab.report.charts.lines import Axis, YAxis, name_rows
from archlab.report.charts.palette import MODES, PALETTES, SHAPES, VERDICTS
from archlab.report.readme_pictures import readme_pictures
from archlab.report.study.arms import DIFFERENCES_SHOW, arm_colors, differences, labels, levels, levels_show
from archlab.report.study.curves import GRADIENT, LINES_SHOW, CurveQuantity, evaluations, last_half, mean_rows, updates
from archlab.report.study.grids import tuned_fields, tuning_rows
from archlab.report.study.page import drawn, render, write_page, write_picture
from archlab.report.study.run_study import write_report
from archlab.report.study.tables import terminal_table
from archlab.report.text_table import fitted
from archlab.study.formatting import amount, interval, p_value
from archlab.study.outcomes.schema import Unit
from archlab.study.record import StudySummary, Verdict
from html_page import Page


def words(text: str) -> str:
    return " ".join(text.split())


@cache
def html_of(name: str) -> str:
    """Return the page of one of the made-up studies."""
    return render(getattr(sample_study, name)())


@cache
def page_of(name: str) -> Page:
    return Page(html_of(name))


@pytest.fixture(scope="module", params=["ladder", "diverging_ladder", "pair", "many", "rich"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def study(name: str) -> StudySummary:
    return getattr(sample_study, name)()


@pytest.fixture(scope="module")
def page(name: str) -> Page:
    return page_of(name)


def test_nothing_is_loaded_from_anywhere(page: Page) -> None:
    assert page.loads == []
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert "url(" not in page.style
    assert "@import" not in page.style


def test_the_page_forbids_the_browser_to_load_anything() -> None:
    assert "default-src 'none'" in html_of("pair")


def test_what_was_asked_what_came_out_and_how_to_do_it_again(study: StudySummary, page: Page) -> None:
    text = words(page.text)
    for said in (study.question, study.answer, study.command, study.corpus, *study.warnings):
        assert words(said) in text
    assert text.index(words(study.question)) < text.index(words(study.answer)) < text.index("Results in numbers")


def test_every_arm_with_its_verdict_and_config(study: StudySummary, page: Page) -> None:
    of_all = 1 + (1 + len(study.arms)) * (1 + len(study.others)) if study.others else 0
    of_documents = 5 * sum(arm.documents is not None for arm in study.arms)
    assert page.tags.count("tr") == 2 * (1 + len(study.arms)) + of_all + of_documents
    assert page.tags.count("details") == 1 + len(study.arms) + sum(arm.documents is not None for arm in study.arms)
    for arm in study.arms:
        assert arm.label in page.text
        assert not arm.comparison or arm.comparison.verdict in page.text
        assert all(f"{key}:" in page.text for key in arm.overrides)


def test_documents_are_folded_away_and_their_interval_is_in_no_heading() -> None:
    """The interval covers other documents, not other seeds. In a heading, it seemed to contradict the verdict."""
    section = re.findall(r'<section aria-labelledby="documents-heading">.*?</section>', html_of("rich"), re.DOTALL)
    (arm,) = (arm for arm in sample_study.rich().arms if arm.documents)
    headings = "".join(re.findall(r"<(?:h\d|summary)\b.*?</(?:h\d|summary)>", section[0], re.DOTALL))
    shown = interval(arm.documents.low, arm.documents.high)
    assert arm.label in headings
    assert shown not in headings
    folded = re.findall(r"<details>.*?</details>", section[0], re.DOTALL)
    assert len(folded) == 1
    assert shown in folded[0]
    assert "<table" not in section[0].replace(folded[0], "")


def test_a_long_word_in_a_table_makes_no_phone_page_wider() -> None:
    """Tables have `overflow-wrap: normal`, except if their cells are below each other."""
    phone = page_of("pair").style.split("@media screen and (max-width: 44rem)")[1]
    (cells,) = re.findall(r"\n  th, td[^{]*\{([^}]*)\}", phone.split("@media")[0])
    assert "overflow-wrap: anywhere" in cells


def test_the_page_shows_the_cache_at_a_context_and_says_which(study: StudySummary, page: Page) -> None:
    assert "KV cache at 1,024" in page.text
    assert page.text.count("2 MiB") == sum(arm.kv_cache_bytes == 2 * 1024**2 for arm in study.arms) > 0


def test_names_beside_lines_are_apart_and_around_the_ends_of_the_lines() -> None:
    """The middle of a stack of names is the middle of its ends. Only the edge of the chart moves it."""
    y = YAxis("loss", "bits per byte", 0.0, 1.0)

    def places(*ends: float) -> list[float]:
        rows = name_rows([{"arm": f"arm {i}", "mean": end} for i, end in enumerate(ends)], y, 0.1)
        return [row["beside"] for row in rows]

    assert places(0.2, 0.7) == [0.2, 0.7]
    assert places(0.50, 0.51, 0.52, 0.9) == pytest.approx([0.41, 0.51, 0.61, 0.9])
    assert places(0.01, 0.02, 0.03) == pytest.approx([0.0, 0.1, 0.2])
    assert places(0.99, 0.98) == pytest.approx([0.9, 1.0])


def test_divergences_are_said_in_page_and_table() -> None:
    text = words(page_of("diverging_ladder").text)
    assert "diverged on 1 of 3 seeds" in text
    assert "diverged on 3 of 3 seeds" in text
    assert "reference diverged" in text
    assert "no run finished" in text
    assert "1 of 3 seeds" in in_terminal(sample_study.diverging_ladder())


def test_every_outcome_is_on_the_page_with_its_unit_and_its_own_correction() -> None:
    text = words(page_of("rich").text)
    for other in sample_study.rich().others:
        unit = other.outcome.unit
        assert words(other.outcome.title[1:]) in text
        for measured in other.arms.values():
            c = measured.comparison
            assert measured.mean is None or amount(measured.mean, unit) in text
            assert not c or c.difference is None or amount(c.difference, unit) in text
            assert not c or c.low is None or interval(c.low, c.high, unit) in text
    assert text.count("corrected for its own 2 comparisons") == 3, "of gradients, speed and rates"
    assert "Bytes; lower is better. It is counted from the config, so it is exact and has no interval." in text
    assert "Tokens/s; higher is better. Paired by timing round" in text
    assert "neither direction is better" in text
    assert "Not compared, because fewer than two arms have values: training tokens until 2.5 bits per byte." in text
    assert "hold for this machine only" in text
    assert "hold for this machine only" not in page_of("pair").text


def test_the_page_shows_the_documents_on_which_arms_differ_most() -> None:
    text = words(page_of("rich").text)
    assert "Over 1,234 documents: 5.100 [5.050, 5.150]" in text
    assert all(f"A tale of {i + 1} 2K {d}" in text for i, d in enumerate(("4.111", "4.222", "7.888", "7.777")))
    assert "Where the arms differ" not in page_of("pair").text


def test_the_page_says_what_a_seed_chooses() -> None:
    assert "the part of the text that is held out" in words(page_of("pair").text)
    study = sample_study.pair()
    first = study.arms[0].model_copy(update={"config": {"data": {"task": {"kind": "recall"}}}})
    task = study.model_copy(update={"evaluated": "share", "arms": [first, *study.arms[1:]]})
    assert "the initial weights and the examples" in words(Page(render(task)).text)


def test_the_share_of_seeds_that_diverged_has_its_interval() -> None:
    assert "1 of 3 [1%, 91%]" in words(page_of("diverging_ladder").text)


def test_the_runs_are_named_and_their_table_is_linked(study: StudySummary, page: Page) -> None:
    text = words(page.text)
    assert all(f"{seed} {folder}" in text for arm in study.arms for seed, folder in arm.runs.items())
    (table,) = page.links
    kind, content = table.split(",")
    assert kind == "data:text/csv;base64"
    rows = list(csv.DictReader(io.StringIO(b64decode(content).decode())))
    assert [(row["arm"], int(row["seed"])) for row in rows] == [(r["arm"], r["seed"]) for r in study.frame()]


def test_what_needs_a_hand_is_not_printed() -> None:
    html = html_of("rich")
    printed = Page(html).style.split("@media print")[1]
    hidden = printed.split("{ display: none !important; }")[0].split("}")[-1]
    buttons = re.findall(r'<button[^>]*class="(\w+)"', html) + re.findall(r'button.className = "(\w+)"', html)
    assert set(buttons) == {"copy", "save"}
    assert all(f".{name}" in hidden for name in (*buttons, "no-print"))
    assert html.count('class="legend') == html.count('class="legend no-print"') > 0
    assert "details:not([open])" in html, "folded parts open for the printer"


def test_equivalence_is_said_in_page_and_table() -> None:
    arms = {"a": ("SwiGLU", 2.600, {}), "b": ("GEGLU", 2.601, {}), "c": ("far", 2.9, {})}
    study = sample_study.study(arms, [0, 1, 2, 3, 4], "base", margin=0.05)
    text = words(Page(render(study)).text)
    near, far = (arm.comparison for arm in study.arms[1:])
    assert near
    assert far
    assert (near.verdict, far.verdict) == ("equivalent", "worse")
    assert (
        f"within ±0.05 bits per byte: p {p_value(near.p_equivalent or 0)}, "
        f"95% interval {interval(near.within_low, near.within_high)}" in text
    )
    assert "treats differences up to 0.05 bits per byte as too small to matter" in text
    assert "equivalent" in in_terminal(study)
    assert "too small to matter" not in page_of("pair").text


def test_the_page_shows_how_well_the_smallest_effect_is_known(study: StudySummary, page: Page) -> None:
    shown = [c for arm in study.arms if (c := arm.comparison) and c.smallest_effect is not None]
    assert shown
    assert all(interval(c.smallest_effect_low, c.smallest_effect_high) in page.text for c in shown)


def test_every_verdict_has_a_color_and_a_shape() -> None:
    assert sorted(VERDICTS) == sorted(get_args(Verdict))
    assert len(SHAPES) == len(VERDICTS)
    assert all(len(PALETTES[mode].verdicts) == len(VERDICTS) for mode in MODES)


def test_what_a_user_wrote_is_never_markup() -> None:
    html = html_of("hostile")
    calm, page = page_of("pair"), page_of("hostile")
    assert "<b>x</b>" not in html
    assert "alert(1)</script>" not in html
    assert page.tags.count("script") == calm.tags.count("script")
    assert page.text.count("<b>x</b><script>alert(1)</script>") > 5
    assert "<b>x</b>" in json.dumps(json.loads(page.data["specs"])), "the charts still have the raw name"


def test_both_modes_give_every_arm_its_own_color(study: StudySummary, page: Page) -> None:
    themes = json.loads(page.data["themes"])
    for mode in MODES:
        assert themes[mode]["range"]["category"] == arm_colors(study, mode)
        assert len(set(arm_colors(study, mode))) == len(study.arms)
    assert "prefers-color-scheme: dark" in page.style


def test_report_is_two_whole_files_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    path = write_page(sample_study.pair(), folder)
    write_picture(sample_study.pair(), folder)
    assert path == folder / "report.html"
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "report.png"]
    assert "vegaEmbed" in path.read_text(encoding="utf-8")
    assert len(path.read_bytes()) < 1.5e6
    png = (folder / "report.png").read_bytes()
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    assert (png[:8], png[12:16], png[-8:-4]) == (b"\x89PNG\r\n\x1a\n", b"IHDR", b"IEND")
    assert width > 1500
    assert height > 800


@pytest.mark.filterwarnings("error")
def test_a_picture_has_no_parameter_of_a_pointer(study: StudySummary) -> None:
    """Two charts of one picture would have the same parameter, about which Altair warns."""
    spec, _ = drawn(study)
    assert {parameter["name"] for parameter in spec.get("params", ())} <= {"chosen"}


def test_the_picture_has_all_names_whole_and_says_what_its_marks_are(study: StudySummary) -> None:
    spec, config = drawn(study)
    svg = ElementTree.fromstring(vegalite_to_svg(spec, config=config))
    texts = [" ".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if "…" in text] == []
    said = words(" ".join(texts))
    for name in labels(study).values():
        assert texts.count(name) >= 2 or all(word in said for word in name.split())
    for caption in (levels_show(study), DIFFERENCES_SHOW, LINES_SHOW):
        assert words(caption) in said


@pytest.mark.parametrize("name", readme_pictures())
def test_a_picture_of_the_readme_is_what_the_code_draws(name: str) -> None:
    """After a change of charts, drawings or results, run `make pictures`."""
    docs = Path(__file__).parents[2] / "docs"
    assert readme_pictures()[name] == (docs / name).read_text()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"report\.html: cannot write: "):
        write_page(sample_study.pair(), tmp_path / "file")


def test_a_failed_write_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archlab.report.study.page.picture", lambda _: b"new")
    (tmp_path / "report.png").write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="No space left"):
        write_picture(sample_study.pair(), tmp_path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("report.png", b"old")]


def test_what_cannot_be_shown_is_written_as_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old summaries may contain such characters. The table, the page and the picture show them; raw ones end the process."""
    bad = "a\x1b[31m\x0c\x00\ufffeb\u202e\udcff"
    arms = {bad: (bad, 2.6, {}), "b": ("b", 2.7, {})}
    study = StudySummary.model_validate(sample_study.study(arms, [0, 1], "base").model_dump() | {"question": bad})
    write_report(study, tmp_path)
    present(study, tmp_path)
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"
    for text in ((tmp_path / "report.html").read_text(encoding="utf-8"), *capsys.readouterr()):
        assert not re.search("[\x1b\x0c\x00\ufffe\u202e\udcff]", text)
    assert r"a\u001b[31m\u000c\u0000\ufffeb\u202e\udcff" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_picture_that_fails_takes_nothing_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException): ...

    def panic(*_: object, **__: object) -> bytes:
        raise PanicException("no such glyph")

    monkeypatch.setattr("vl_convert.vegalite_to_png", panic)
    study = sample_study.pair()
    write_report(study, tmp_path)
    present(study, tmp_path)
    out, err = capsys.readouterr()
    assert words(study.answer) in words(out)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert "note: report.png was not written: could not draw the picture: no such glyph" in err


@pytest.mark.parametrize("name", ["rich", "diverging_ladder"])
def test_charts_are_valid_vega_lite(name: str) -> None:
    """Pages skip this check, because it takes longer than everything else."""
    specs = json.loads(page_of(name).data["specs"])
    assert len(specs) > 4
    for spec in specs.values():
        alt.LayerChart.from_dict(spec, validate=True)
    spec["layer"][0]["encoding"] = {"x": {"type": "nonsense"}}
    with pytest.raises(jsonschema.ValidationError, match="nonsense"):
        alt.LayerChart.from_dict(spec, validate=True)


def test_bands_of_curves_leave_out_what_a_seed_does_to_all_arms() -> None:
    """Each seed has its own held-out text, which moves all arms by more than the arms differ."""
    study = sample_study.pair()
    shift = {seed: seed / 10 for seed in study.seeds}

    def moved(n: int) -> StudySummary:
        arms = [
            arm.model_copy(update={"curves": [
                c.model_copy(update={"values": [2.0 + i + shift[c.seed] for _ in c.values]}) for c in arm.curves
            ]})
            for i, arm in enumerate(study.arms[:n])
        ]  # fmt: skip
        return study.model_copy(update={"arms": arms})

    drawn = CurveQuantity(Axis("bits", "bits per byte"), lambda curve: (curve.tokens, curve.values))
    for row in mean_rows(moved(2), drawn):
        assert row["high"] - row["low"] == pytest.approx(0, abs=1e-9)
        assert row["mean"] == pytest.approx(row["low"])
    assert {round(row["high"] - row["low"], 6) for row in mean_rows(moved(1), drawn)} == {0.4}
    logarithmic = drawn._replace(axis=drawn.axis._replace(is_logarithmic=True))
    assert {round(row["high"] - row["low"], 6) for row in mean_rows(moved(2), logarithmic)} == {0.4}


def test_a_run_that_went_far_away_is_drawn_no_further_than_the_renderer_bears() -> None:
    """The renderer ends the process, without an exception, if coordinates are millions of pixels away."""
    study = sample_study.diverging_ladder()
    arms = [
        arm.model_copy(update={"curves": [c.model_copy(update={"values": [c.values[0], *[5.5e6] * (len(c.values) - 1)]})
                                          if c.seed in arm.diverged else c for c in arm.curves]})
        for arm in study.arms
    ]  # fmt: skip
    far = study.model_copy(update={"arms": arms})
    chart = evaluations(far)
    assert chart is not None
    values = [float(x) for x in re.findall(r'"mean": ([0-9.e+]+)', json.dumps(chart.to_dict()))]
    assert 100 < max(values) < 200, "it leaves the picture, twenty heights of about four bits"


@pytest.mark.parametrize("everywhere", [False, True])
def test_gradients_of_zero_leave_a_picture_of_the_others(everywhere: bool) -> None:
    """A logarithmic axis has no place for zeros. A run that diverged may have nothing else at its end."""
    study = sample_study.diverging_ladder()
    arms = [
        arm.model_copy(update={"curves": [
            c.model_copy(update={"gradients": [*c.gradients[:-1], 0.0]}) if everywhere or c.seed in arm.diverged else c
            for c in arm.curves
        ]})
        for arm in study.arms
    ]  # fmt: skip
    zero = study.model_copy(update={"arms": arms})
    chart = updates(zero, GRADIENT)
    assert chart is not None
    shown = [float(x) for x in re.findall(r'"(?:mean|held)": ([0-9.e+-]+)', json.dumps(chart.to_dict()))]
    assert min(shown) > 0
    assert "diverged on 3 of 3 seeds" in render(zero)


# --- terminal -----------------------------------------------------------------------------------------


def in_terminal(study: StudySummary, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(terminal_table(study, width))
    return out.getvalue()


def test_terminal_table_is_as_wide_as_the_terminal(study: StudySummary) -> None:
    for width in (80, 120, 200):
        text = in_terminal(study, width)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        for arm in study.arms:
            assert set(arm.label.split()) <= set(text.split()), "nothing is cut off, no word is broken"
            assert arm.mean is None or f"{arm.mean:.3f}" in text
    assert len(text.splitlines()) == 1 + len(study.arms), "one line per arm where there is room"


def test_terminal_table_takes_names_literally() -> None:
    study = sample_study.study({"a": ("[red]a", 2.6, {}), "b": ("[/]b", 2.7, {})}, [0, 1], "base")
    assert "[red]a" in in_terminal(study)


@pytest.mark.parametrize(
    ("cells", "room", "fits"),
    [
        (("a b", "c"), 4, ("a b", "c")),
        (("a b", "c"), 3, ("a\nb", "c")),
        (("pre-norm", "model.norm.kind"), 17, ("pre-norm", "model.\nnorm.kind")),
        (("runs/a/b", "0.08838", "1e-06"), 1, ("runs/\na/b", "0.08838", "1e-06")),
        (("one two three", "four five"), 14, ("one two\nthree", "four\nfive")),
        (("\u6f22\u5b57 \u6f22\u5b57", "x"), 5, ("\u6f22\u5b57\n\u6f22\u5b57", "x")),
        (("a\n  b c",), 3, ("a\n  b\nc",)),
    ],
)
def test_columns_are_broken_between_words(cells: tuple[str, ...], room: int, fits: tuple[str, ...]) -> None:
    assert next(iter(fitted([cells], room))) == fits


# --- pictures -----------------------------------------------------------------------------------------


def rows_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all rows that the layers of a chart draw."""
    return [row for data in chart["datasets"].values() for row in data]


def domain(chart: dict[str, Any], axis: str) -> tuple[float, float]:
    """Return both ends of the numeric axis."""
    (found,) = {
        tuple(layer["encoding"][axis]["scale"]["domain"])
        for layer in chart["layer"]
        if layer["encoding"].get(axis, {}).get("type") == "quantitative"
    }
    return found


def test_every_interval_is_whole_in_one_of_the_pictures(study: StudySummary, page: Page) -> None:
    """An arm far from the others is a triangle in one chart, and a mark with its interval in the chart of the whole range."""
    specs = json.loads(page.data["specs"])
    pictures = {"differences": study} | {
        f"other-{i}": study.by(other.outcome.name) for i, other in enumerate(study.others)
    }
    for name, of in pictures.items():
        compared = [c for arm in of.arms if (c := arm.comparison) and c.difference is not None]
        shown = set[float]()
        for spec in (specs[key] for key in (name, f"{name}-whole") if key in specs):
            low, high = domain(spec, "x")
            shown |= {
                row["value"]
                for row in rows_of(spec)
                if row.get("at") == "inside"
                and low <= row["value"] <= high
                and (row["low"] is None or low <= row["low"] <= row["high"] <= high)
            }
        assert shown == {c.difference for c in compared}


def test_a_second_half_with_one_evaluation_is_left_out_with_a_sentence() -> None:
    """A line needs two points."""
    study = sample_study.ladder()
    ends = [0, sample_study.TOKENS]
    arms = [
        arm.model_copy(
            update={
                "curves": [
                    c.model_copy(update={"tokens": ends, "values": [c.values[0], c.values[-1]]}) for c in arm.curves
                ]
            }
        )
        for arm in study.arms
    ]
    short = study.model_copy(update={"arms": arms})
    assert evaluations(short) is not None
    assert last_half(short) is None
    said = "The second half is not drawn, because it has fewer than two evaluations."
    assert said in words(Page(render(short)).text)
    assert said not in words(Page(render(study)).text)


def test_an_arm_far_off_does_not_squash_the_rest() -> None:
    study = sample_study.many()
    low, high = domain(last_half(study).to_dict(), "y")
    assert 2.5 < low < 2.7
    assert high < 5, "the arm that ends at 7.9 leaves the picture"
    assert domain(evaluations(study).to_dict(), "y")[1] > 7.9, "but not the chart of the whole training"
    far = [row for row in rows_of(levels(study).to_dict()) if row.get("at") == "right"]
    assert {row["arm"] for row in far} == {"Identity: a linear MLP, to show what it is for"}


def test_curves_begin_before_the_first_update_and_end_with_a_label(study: StudySummary) -> None:
    chart = evaluations(study)
    assert chart
    spec = chart.to_dict()
    assert domain(spec, "x") == (0, sample_study.TOKENS)
    assert {row["arm"] for row in rows_of(spec) if row.get("tokens") == 0} == set(labels(study).values())
    axis = spec["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"][0] == 0
    assert axis["values"][-1] == sample_study.TOKENS
    assert "logarithmic" in axis["title"]


def test_every_line_has_its_name_and_no_name_covers_another(study: StudySummary) -> None:
    chart = evaluations(study)
    assert chart
    spec = chart.to_dict()
    names = {row["arm"]: row["beside"] for row in rows_of(spec) if "beside" in row}
    assert set(names) == set(labels(study).values())
    low, high = domain(spec, "y")
    places = sorted(spec["height"] * (value - low) / (high - low) for value in names.values())
    assert all(above - below > 14.9 for below, above in pairwise(places))
    assert -0.1 <= places[0] < places[-1] <= spec["height"] + 0.1, "all beside the picture"


def test_tuning_marks_the_optimum_the_edge_and_divergence() -> None:
    study = sample_study.rich()
    assert tuned_fields(study) == ["train.lr", "train.schedule"]
    rows = {(row["arm"].split(",")[0], row["value"]): row for row in tuning_rows(study, "train.lr", "bits per byte")}
    assert [value for arm, value in rows if arm == "ReLU"] == ["0.002", "0.008", "0.016"]
    assert rows["ReLU", "0.008"]["mark"] == "optimum"
    assert rows["GELU", "0.002"]["mark"] == "edge"
    assert rows["GELU", "0.016"]["mean"] is None
    assert "diverged" in rows["GELU", "0.016"]["text"]
    assert rows["ReLU", "0.008"]["mean"] == pytest.approx((3 - 0.8 + 2.9) / 2), "the better schedule's"
    kinds = {
        row["value"]: row["mark"]
        for row in tuning_rows(study, "train.schedule", "bits per byte")
        if row["arm"][0] == "R"
    }
    assert kinds == {"cosine": "optimum", "constant": None}, "a value that is not a number has no edge"
    assert {"tuning-0", "tuning-1"} <= json.loads(page_of("rich").data["specs"]).keys()


def test_on_a_phone_no_label_is_cut() -> None:
    study = sample_study.many()
    for chart in (levels(study), differences(study)):
        assert chart
        spec = chart.to_dict()
        shown = {row["arm"]: row for row in rows_of(spec) if "lines" in row}
        assert len(shown) == len(study.arms)
        assert all(" ".join(row["lines"]) == arm for arm, row in shown.items())
        assert all(len(line) <= 44 for row in shown.values() for line in row["lines"])
        n_lines = max(1 - row["up"] // 16 for row in shown.values())
        narrow = spec["usermeta"]["narrow"]
        assert narrow["height"] == spec["height"] + (n_lines - 1) * 16 * len(study.arms)
        assert narrow["below"] >= 7 * max(len(arm) + len(row["text"]) for arm, row in shown.items())
    for other, left_out in ((study, "containerSize"), (sample_study.pair(), "false")):
        chart = evaluations(other)
        assert chart
        (names,) = (layer["mark"] for layer in chart.to_dict()["layer"] if layer["mark"].get("align") == "left")
        assert names["text"]["expr"].startswith(left_out), "names that would be cut stand in the legend alone"


def test_the_ends_of_an_axis_keep_their_labels() -> None:
    assert spaced([0, 5, 50, 60, 95, 100], lambda tick: tick / 100, 0.08) == [0, 50, 60, 100]
    assert spaced([0, 10, 100], lambda tick: tick / 100, 0.26) == [0, 100]


@pytest.mark.parametrize(
    ("low", "high"), [(-0.0134, 0.0261), (2.61, 2.75), (0, 1), (-131072.0, 0), (1e-9, 3e-9), (5, 5)]
)
def test_ticks_are_round_few_and_within(low: float, high: float) -> None:
    ticks = plain(low, high)
    assert 1 <= len(ticks) <= 5
    assert all(low <= tick <= high for tick in ticks)
    assert all(len(f"{tick:g}".lstrip("-0.").rstrip("0").replace(".", "").split("e")[0]) <= 3 for tick in ticks)
    if high > low:
        step = ticks[1] - ticks[0]
        assert f"{step:.3e}"[0] in "125"
        assert float(f"{step:.0e}") == pytest.approx(step)


@pytest.mark.parametrize(("low", "high"), [(1.11, 1.39), (0.42, 0.44), (2, 2.6), (1, 1000)])
def test_a_logarithmic_axis_has_ticks_even_if_it_is_narrow(low: float, high: float) -> None:
    ticks = logarithmic(low, high)
    assert len(ticks) >= 2
    assert all(low <= tick <= high for tick in ticks)


@pytest.mark.parametrize(
    ("unit", "of_differences", "shown"),
    [("share", True, "−20 pp"), ("share", False, "−20%"), ("bits per byte", True, "−0.2")],
)
def test_labels_of_an_axis_are_of_its_unit(unit: Unit, of_differences: bool, shown: str) -> None:
    ours = axis("title", unit, -0.4, 0.2, of_differences=of_differences)
    scale = alt.Scale(domain=[-0.4, 0.2])
    chart = alt.Chart(alt.InlineData(values=[{"x": 0.1}])).mark_point().encode(x=alt.X("x:Q", scale=scale, axis=ours))
    assert f">{shown}</text>" in vegalite_to_svg(chart.to_json())


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([4.61, 3.42, 3.42, 3.39, 2.69, 2.60, 2.61], 7),
        ([12.0, 3.42, 3.42, 3.39, 2.69, 2.60, 2.61], 6),
        ([2.60, 2.61], 2),
        ([2.60, 2.61, 9.0], 3),
        ([2.6, 2.6, 2.6, 2.6, 9.0], 5),
        ([], 0),
    ],
)
def test_only_few_and_only_clear_exceptions_are_set_apart(values: list[float], kept: int) -> None:
    assert len(without_outliers(values)) == kept


def test_differences_need_something_to_differ_from() -> None:
    study = sample_study.study({"only": ("only", 2.6, {})}, [0, 1], "base")
    assert differences(study) is None
    assert re.search("nothing to compare", render(study))


def test_a_study_in_which_all_diverged_still_has_a_report() -> None:
    arms = {"a": ("a", 2.6, {}), "b": ("b", 2.7, {})}
    study = sample_study.study(arms, [0, 1], "base", diverged={(arm, seed) for arm in arms for seed in (0, 1)})
    assert "diverged on 2 of 2 seeds" in render(study)


def test_a_study_without_finished_runs_still_has_a_report() -> None:
    study = sample_study.pair()
    empty = {"values": {}, "seeds": [], "curves": [], "mean": None, "deviation": None, "tokens_per_second": None}
    study = study.model_copy(
        update={"arms": [arm.model_copy(update={**empty, "comparison": None}) for arm in study.arms]}
    )
    assert evaluations(study) is None
    assert "Learning curves" not in render(study)
