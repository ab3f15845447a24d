"""Pages that commands write, as a browser shows them: they fit the window, have enough contrast, and load nothing."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from archlab.cli.app import main
from browsers import needs_browser

pytest.importorskip("playwright", reason="playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

pytestmark = needs_browser

DESK, PHONE = 1280, 390
Scheme = Literal["light", "dark"]

PAPER = 703
"""Width of A4 in pixels, between margins of 12 mm."""

CUT = """[...document.querySelectorAll(".chart svg text")].filter(text => {
  const frame = text.closest("svg").getBoundingClientRect(), box = text.getBoundingClientRect();
  return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1);
}).map(text => text.textContent)"""
"""Script that returns the texts that the edge of their chart cuts off."""

COMMANDS = {
    "diff": ("diff", "llama-3-8b", "gemma-2-9b"),
    "diff-encoder": ("diff", "tiny-llama", "t5-small"),
    "check": ("check", "llama-3-8b"),
    "check-findings": ("check", "gpt-2-xl"),
    "atlas": ("list",),
    "ledger": ("ledger",),
    "cost": ("cost", "llama-3-8b", "gemma-2-9b", "--context", "8Ki,128Ki"),
    "cost-of-a-long-name": ("cost", "tiny-llama-with-one-key-value-head-and-no-spaces.yaml"),
}
RUNS = ("run", "runs")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a page per command, written by the commands."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / COMMANDS["cost-of-a-long-name"][1]).write_text("base: tiny-llama\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, arguments in COMMANDS.items():
            assert main([*arguments, "--html", f"{name}.html"]) == 0
    settings = ("train.tokens=8192", "train.batch_tokens=1024", "train.eval_every=2", "train.eval_tokens=2048")
    for seed in (1, 2):
        run = str(folder / f"seed-{seed}")
        assert main(["train", "tiny-llama", *settings, "train.probe_every=4", f"train.seed={seed}", "--out", run]) == 0
    assert main(["report", str(folder / "seed-1"), "--out", str(folder / "run.html")]) == 0
    assert main(["report", str(folder / "seed-1"), str(folder / "seed-2"), "--out", str(folder / "runs.html")]) == 0
    return folder


class Opener:
    """Opens pages, and collects the errors that they log and the addresses that they request."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.problems = list[str]()

    def __call__(self, name: str, width: int = DESK, scheme: Scheme = "light") -> Page:
        page = self.browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.problems.append(request.url) if "file:" not in request.url else None)
        file, _, fragment = name.partition("#")
        page.goto(f"{(self.folder / file).with_suffix('.html').as_uri()}#{fragment}")
        if page.locator("#specs").count():
            shown = "[...document.querySelectorAll('.chart')].filter(chart => !chart.closest('details:not([open])'))"
            n_charts = page.evaluate(f"{shown}.length")
            expect(page.locator(".chart svg.marks")).to_have_count(n_charts)
        return page


@pytest.fixture
def opened(browser: Browser, pages: Path) -> Iterator[Opener]:
    opener = Opener(browser, pages)
    yield opener
    for page in [page for context in browser.contexts for page in context.pages]:
        page.close()
    assert opener.problems == []


def height(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollHeight")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("name", [*COMMANDS, *RUNS])
@pytest.mark.slow
def test_a_page_fits_and_can_be_read(opened: Opener, name: str, width: int, scheme: Scheme) -> None:
    """axe checks contrast (AA), names of controls, roles and the order of headings."""
    page = opened(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == []
    found = Axe().run(page).response["violations"]
    serious = [(v["id"], v["nodes"][0]["target"]) for v in found if v["impact"] in ("serious", "critical")]
    assert serious == []


@pytest.mark.parametrize("name", [*COMMANDS, *RUNS])
@pytest.mark.slow
def test_a_page_is_printed_with_tables_and_without_controls(opened: Opener, name: str) -> None:
    """Paper is about as narrow as a phone. But on paper a table has columns, and charts are drawn for its width."""
    page = opened(name)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for chart in page.locator(".chart:visible").all():
        box = chart.bounding_box()
        assert box
        assert box["width"] <= PAPER + 1
    page.set_viewport_size({"width": PAPER, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    layouts = page.evaluate("[...document.querySelectorAll('table')].map(table => getComputedStyle(table).display)")
    assert set(layouts) <= {"table"}
    assert page.locator(".no-print:visible, input:visible").count() == 0


# --- atlas -----------------------------------------------------------------------------------------------------------


def names(page: Page) -> list[str]:
    return page.locator("#models tbody:visible th a").all_inner_texts()


@pytest.mark.slow
def test_the_atlas_is_short_and_all_its_columns_are_in_sight(opened: Opener) -> None:
    page = opened("atlas")
    assert height(page) < 6000
    for heading in page.locator("#models thead th").all():
        box = heading.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= DESK
    assert height(opened("atlas", PHONE)) < 12_000


@pytest.mark.slow
def test_the_atlas_is_printed_in_full(opened: Opener) -> None:
    page = opened("atlas")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#models details:not([open])").count() == 0
    whole, shown = page.evaluate("(box => [box.scrollHeight, box.clientHeight])(document.querySelector('.tall'))")
    assert whole == shown
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#models details[open]").count() == 0


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.slow
def test_the_filter_leaves_models_with_all_words(opened: Opener, width: int) -> None:
    page = opened("atlas", width)
    n_models = len(names(page))
    page.get_by_label("Filter").fill("mla deepseek")
    assert names(page) == ["DeepSeek-V2", "DeepSeek-V2-Lite", "DeepSeek-V3"]
    assert page.locator(".filter output").inner_text() == f"3 of {n_models} models"
    page.get_by_label("Filter").fill("")
    assert len(names(page)) == n_models


@pytest.mark.slow
def test_a_heading_sorts_by_value_and_unknown_values_are_last(opened: Opener) -> None:
    page = opened("atlas")
    button = page.get_by_role("button", name="size", exact=True)
    button.click()
    assert page.locator("#models [aria-sort]").get_attribute("aria-sort") == "ascending"
    smallest = names(page)[0]
    button.click()
    assert page.locator("#models [aria-sort]").get_attribute("aria-sort") == "descending"
    sizes = page.locator("#models tbody td[data-label=size]").evaluate_all("cells => cells.map(c => +c.dataset.number)")
    assert sizes == sorted(sizes, reverse=True)
    assert names(page)[-1] == smallest
    page.get_by_role("button", name="lang", exact=True).click()
    languages = page.locator("#models tbody td[data-label=lang]").all_inner_texts()
    known = [text for text in languages if text]
    assert languages == known + [""] * (len(languages) - len(known))


@pytest.mark.slow
def test_a_phone_sorts_with_a_menu(opened: Opener) -> None:
    page = opened("atlas", PHONE)
    page.get_by_label("Sort by").select_option("d/L")
    values = page.locator("#models tbody td[data-label='d/L']").evaluate_all(
        "cells => cells.map(c => +c.dataset.number)"
    )
    assert values == sorted(values)
    page.get_by_role("button", name="Reverse").click()
    turned = page.locator("#models tbody td[data-label='d/L']").evaluate_all(
        "cells => cells.map(c => +c.dataset.number)"
    )
    assert turned == sorted(values, reverse=True)


@pytest.mark.slow
def test_a_dot_leads_to_its_model(opened: Opener) -> None:
    """The model is shown even if the filter hides it."""
    page = opened("atlas")
    page.get_by_label("Filter").fill("no such model")
    assert names(page) == []
    dots = page.evaluate_handle("[...document.querySelectorAll('#chart-wide path')]")
    dot = dots.evaluate_handle("dots => dots.find(dot => dot.__data__?.datum?.href === '#model-t5-11b')").as_element()
    assert dot
    dot.click()
    assert page.locator("#model-t5-11b details").get_attribute("open") is not None
    expect(page.locator("#model-t5-11b th")).to_be_in_viewport()


@pytest.mark.slow
def test_a_link_to_a_model_shows_it_below_the_headings(opened: Opener) -> None:
    page = opened("atlas#model-deepseek-v3")
    headings, model = (
        page.locator(part).first.bounding_box() for part in ("#models thead th", "#model-deepseek-v3 th")
    )
    assert headings
    assert model
    assert headings["y"] + headings["height"] <= model["y"]
    expect(page.locator("#model-deepseek-v3 th")).to_be_in_viewport()
    expect(page.locator("#model-deepseek-v3 details")).to_have_attribute("open", "")


# --- other pages -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_starts_with_what_changed_and_its_diagrams_start_together(opened: Opener) -> None:
    page = opened("diff")
    assert page.locator("h2").first.inner_text() == "What changed"
    assert page.locator(".changed tbody tr").count() == 5
    boxes = [diagram.bounding_box() for diagram in page.locator(".diagrams svg").all()]
    assert len({box["y"] for box in boxes if box}) == 1
    assert not re.search(r"\d\.\d{6,}", page.inner_text("main"))


@pytest.mark.slow
def test_a_strip_marks_the_config_between_the_published_models(opened: Opener) -> None:
    page = opened("check")
    expect(page.locator(".rules td.passed")).to_have_count(page.locator(".rules tbody tr").count())
    row = page.locator(".rules tr", has=page.get_by_role("rowheader", name="d_model / n_layers", exact=True))
    strip, own = (row.locator(part).bounding_box() for part in (".strip", ".own"))
    assert strip
    assert own
    assert strip["x"] < own["x"] < strip["x"] + strip["width"]
    assert row.locator(".models rect").count() > 90
    assert "Llama 3.1 405B: 130" in row.locator("title").all_text_contents()
    findings = opened("check-findings").locator(".rules td.warning")
    assert findings.count() >= 1


@pytest.mark.slow
def test_the_roofline_names_its_ridge_and_its_peak(opened: Opener) -> None:
    """H100 SXM: 989.4 TFLOP/s over 3.35 TB/s are 295 FLOPs per byte."""
    texts = opened("cost").locator("#chart-roofline svg text").all_text_contents()
    assert "ridge: 295 FLOPs per byte" in texts
    assert "989T" in texts


@pytest.mark.slow
def test_the_pointer_finds_a_point_of_a_curve_from_afar(opened: Opener) -> None:
    """The tooltip says at which context, so that the value can be read without the axis."""
    page = opened("cost")
    page.locator("#chart-context").scroll_into_view_if_needed()
    frame = page.locator("#chart-context .mark-group.role-frame > g > path.background").bounding_box()
    assert frame
    page.mouse.move(frame["x"] + 0.5 * frame["width"], frame["y"] + 0.95 * frame["height"])
    expect(page.locator("#vg-tooltip-element")).to_contain_text(re.compile(r"8,192 tokens: \d+ tokens/s"))


@pytest.mark.slow
def test_decoding_speeds_fill_their_axis(opened: Opener) -> None:
    page = opened("cost")
    marks = [mark.bounding_box() for mark in page.locator("#chart-context .mark-symbol path").all()]
    frame = page.locator("#chart-context .mark-group.role-frame > g > path.background").bounding_box()
    assert frame
    heights = [box["y"] for box in marks if box]
    assert max(heights) - min(heights) > 0.4 * frame["height"]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_the_report_of_a_run_says_what_and_how_well(opened: Opener, name: str) -> None:
    page = opened(name)
    header = page.inner_text("header")
    assert "bits per byte on held-out data after 8.19K of 8.19K training tokens (finished)" in header
    assert ("1.35M parameters" in header) == (name == "run")
    assert "SwiGLU, 344 wide" in header
    for heading in page.locator("h3").all():
        box = heading.bounding_box()
        beside = heading.evaluate("h => h.nextElementSibling.getBoundingClientRect().top + scrollY")
        assert box
        assert beside - (box["y"] + box["height"]) >= 8
