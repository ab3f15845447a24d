"""The screens of published models in a real browser: filters, axes, the star, and the page of a model."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from ui_server import Laboratory, served

from browsers import needs_browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with served(tmp_path_factory.mktemp("lab"), browser) as laboratory:
        yield laboratory


@pytest.fixture
def page(lab: Laboratory) -> Iterator[Page]:
    with lab.page() as page:
        page.set_viewport_size({"width": 1280, "height": 900})
        yield page


def shown(page: Page) -> int:
    """Return the number of models in the table, which must be the one above the charts."""
    n = page.locator("#models tbody").count()
    expect(page.get_by_role("status")).to_have_text(re.compile(rf"^{n} of \d+ models$"))
    assert page.locator(".plot a").count() == n - left_out(page)
    return n


def left_out(page: Page) -> int:
    found = re.search(r"(\d+) selected models? left out", page.inner_text("main"))
    return int(found[1]) if found else 0


def test_gqa_and_2024_are_two_clicks_and_two_chips(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/models")
    everything = shown(page)
    page.get_by_role("link", name=re.compile("^GQA [0-9]+$")).click()
    expect(page).to_have_url(f"{lab.home}/models?heads=GQA")
    of_gqa = shown(page)
    page.locator("#year-2024").click()
    expect(page).to_have_url(f"{lab.home}/models?heads=GQA&year=2024")
    both = shown(page)
    assert everything > of_gqa > both > 20
    expect(page.locator(".chips a")).to_have_count(3)
    expect(page.locator("pre.commands")).to_contain_text("archlab list presets --filter heads=GQA year=2024")
    page.reload()
    assert shown(page) == both
    page.get_by_role("link", name="Remove heads=GQA").click()
    expect(page).to_have_url(f"{lab.home}/models?year=2024")
    page.go_back()
    expect(page.locator(".chips a")).to_have_count(3)
    assert shown(page) == both
    page.get_by_role("link", name="Clear all").click()
    expect(page).to_have_url(f"{lab.home}/models")
    assert shown(page) == everything


def test_a_bar_selects_its_option_and_its_year_and_the_page_stays_in_place(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/models")
    bar = page.get_by_role("link", name=re.compile("^parallel, 2024"))
    bar.scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    bar.evaluate("bar => bar.click()")
    expect(page).to_have_url(f"{lab.home}/models?block=parallel&year=2024")
    assert page.evaluate("scrollY") == before > 0
    assert shown(page) == 5
    expect(page.get_by_role("link", name=re.compile("^parallel [0-9]"))).to_have_attribute("aria-current", "true")


def test_the_keyboard_selects_an_option_and_keeps_its_place(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/models")
    page.locator("#heads-3").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{lab.home}/models?heads=GQA")
    expect(page.locator("#heads-3")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{lab.home}/models")


def test_axes_order_conditions_and_star_are_in_the_address(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/models?year=2024")
    page.select_option("#y", "context")
    expect(page.get_by_role("heading", name="Context in tokens")).to_be_visible()
    page.fill("#add", "size>100B")
    page.press("#add", "Enter")
    expect(page.locator(".chips a")).to_have_count(3)
    page.fill("#mine", "llama-3-8b model.max_seq_len=131072")
    page.press("#mine", "Tab")
    star = page.get_by_role(
        "img", name=re.compile("llama-3-8b model.max_seq_len=131072: Parameters 8.03B, Context in tokens 128Ki")
    )
    expect(star).to_be_visible()
    page.get_by_role("columnheader", name="size").get_by_role("link").click()
    expect(page.locator("#models th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    address = page.url
    assert "year=2024&size%3E100B&y=context&sort=size&mine=llama-3-8b" in address
    page.fill("#add", "sise>1")
    page.press("#add", "Enter")
    expect(page.get_by_role("alert")).to_contain_text("did you mean size")
    assert page.url == address
    shown(page)


def test_a_field_of_the_config_is_an_axis_and_a_condition(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/models")
    page.select_option("#y", "model.norm.eps")
    expect(page.get_by_role("heading", name="model.norm.eps")).to_be_visible()
    page.fill("#add", "model.attention.n_kv_heads<8")
    page.press("#add", "Enter")
    expect(page).to_have_url(f"{lab.home}/models?model.attention.n_kv_heads%3C8&y=model.norm.eps")
    assert 0 < shown(page) < 60
    row = page.locator("#models tr.more td").first.bounding_box()
    table = page.locator("#models").bounding_box()
    assert row
    assert table
    assert row["width"] > 0.95 * table["width"]


def test_a_dot_leads_to_the_page_of_its_model_and_on_to_the_workbench_and_compare(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/models?preset=gemma-2-9b")
    page.locator(".plot a").click()
    expect(page).to_have_url(f"{lab.home}/models/gemma-2-9b")
    expect(page.get_by_role("heading", level=1)).to_have_text("Gemma 2 9B")
    expect(page.locator(".diagram svg")).to_be_visible()
    page.get_by_role("link", name=re.compile("^[0-9]+ of [0-9]+ models")).first.click()
    expect(page).to_have_url(f"{lab.home}/models?norm=RMSNorm")
    page.go_back()
    page.get_by_text("Open in the workbench").click()
    expect(page).to_have_url(f"{lab.home}/m/gemma-2-9b")
    page.go_back()
    page.get_by_label("Compare with").fill("llama-3-8b")
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(f"{lab.home}/vs/gemma-2-9b/llama-3-8b")


def test_a_phone_sorts_and_filters(lab: Laboratory, page: Page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{lab.home}/models?year=2025")
    page.select_option("#sort", "-size")
    expect(page).to_have_url(f"{lab.home}/models?year=2025&sort=-size")
    sizes = page.locator("#models td[data-label=size]").evaluate_all("cells => cells.map(cell => +cell.dataset.number)")
    assert sizes == sorted(sizes, reverse=True)
    page.get_by_role("link", name=re.compile("^MLA [0-9]+$")).click()
    expect(page).to_have_url(f"{lab.home}/models?year=2025&heads=MLA&sort=-size")
    assert shown(page) == 4
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
