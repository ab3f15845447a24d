"""The guide in a browser: it fits the screen, loads nothing, and its search, sidebar and folds work."""

import re
from collections.abc import Iterator

import pytest

from browsers import needs_browser

pytestmark = needs_browser

PAGES = ("index.html", "01-norms.html", "05-positions.html", "ledger.html", "reference-model-attention.html")


@pytest.fixture(scope="module")
def guide(shared_lab) -> Iterator:
    shared_lab.run("guide", "--out", "guide")
    return shared_lab.folder / "guide"


@pytest.fixture
def faults() -> list[str]:
    return []


def opened(browser, address: str, width: int, faults: list[str]):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: faults.append(request.url) if request.url.startswith("http") else None)
    page.goto(address)
    return page


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen_and_load_nothing(browser, guide, faults, width):
    for name in PAGES:
        page = opened(browser, (guide / name).as_uri(), width, faults)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        # The longest page lists which of all presets have which norms, so it grows with them.
        tallest = 17_000 if width == 1280 else 9_000 if name == "ledger.html" else 30_000
        assert page.evaluate("document.documentElement.scrollHeight") < tallest, name
        page.close()
    assert faults == []


def test_the_search_finds_a_topic_by_its_chinese_name(browser, guide, faults):
    page = opened(browser, (guide / "index.html").as_uri(), 1280, faults)
    page.keyboard.press("/")
    page.keyboard.type("旋转位置编码")
    assert page.locator("#found li").first.inner_text().startswith("RoPE")
    page.keyboard.press("Enter")
    page.wait_for_url("**/05-positions.html#rope")
    assert page.locator("#rope math").count() > 0
    assert faults == []


def test_a_link_to_a_claim_opens_it_and_verdicts_are_filtered(browser, guide, faults):
    page = opened(browser, (guide / "ledger.html").as_uri() + "#claim-4", 1280, faults)
    assert page.locator("#claim-4").get_attribute("open") is not None
    assert page.locator("details.one[open]").count() == 1
    page.get_by_role("button", name=re.compile("as claimed here")).click()
    shown = page.locator("details.one:visible")
    assert 0 < shown.count() < page.locator("details.one").count()
    assert faults == []


def test_a_curve_has_a_crosshair(browser, guide, faults):
    page = opened(browser, (guide / "05-positions.html").as_uri(), 1280, faults)
    chart = page.locator("#chart-rotation svg").first
    before = chart.locator(".mark-rule line").count()
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    page.wait_for_timeout(500)
    assert chart.locator(".mark-rule line").count() == before + 2
    shown = page.locator("#vg-tooltip-element").inner_text()
    assert "cosine of the angle" in shown
    assert "pair" in shown
    assert faults == []
