"""The screen of a choice in a real browser: pictures that follow a slider, and how it looks on a phone."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from ui_server import Laboratory, check_screen, served

from browsers import needs_browser

pytestmark = needs_browser

SCREENS = [
    "/choice/swiglu?in=llama-3-8b",
    "/choice/yarn",
    "/choice/gqa?in=llama-3-8b",
    "/choice/sliding-window",
    "/choice/moe?capacity=1",
    "/choice/pre-norm",
]


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with served(tmp_path_factory.mktemp("lab"), browser) as laboratory:
        yield laboratory


@pytest.fixture
def page(lab: Laboratory) -> Iterator[Page]:
    with lab.page() as page:
        yield page


@pytest.fixture
def home(lab: Laboratory) -> str:
    return lab.home


@pytest.mark.parametrize("path", SCREENS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_choice_fits_a_phone_and_has_no_serious_finding_of_axe(home: str, page: Page, path: str, scheme: str):
    check_screen(page, home + path, scheme)


def test_a_slider_redraws_the_picture_and_its_state_is_in_the_link(home: str, page: Page):
    page.goto(f"{home}/choice/rope")
    caption = page.locator("#pictures figcaption").first
    expect(caption).to_contain_text("theta 10,000")
    slider = page.locator('[data-number="knob-theta"]')
    slider.evaluate("node => { node.value = 6; node.dispatchEvent(new Event('input', { bubbles: true })); }")
    expect(page.locator("#knob-theta")).to_have_value("1000000")
    expect(caption).to_contain_text("theta 1,000,000")
    expect(page).to_have_url(f"{home}/choice/rope?theta=1000000")
    page.reload()
    expect(page.locator("#pictures figcaption").first).to_contain_text("theta 1,000,000")
    expect(page.locator("#knob-theta")).to_have_value("1000000")


def test_keys_move_a_slider(home: str, page: Page):
    page.goto(f"{home}/choice/sliding-window")
    page.locator('[data-number="knob-window"]').focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#knob-window")).to_have_value("5")
    expect(page.locator("#pictures")).to_contain_text("keeps 5 of 16 keys")


def test_a_number_that_is_typed_moves_the_slider_and_a_wrong_one_is_explained(home: str, page: Page):
    page.goto(f"{home}/choice/gqa")
    page.fill("#knob-n_kv_heads", "4")
    expect(page.locator("#pictures")).to_contain_text("keeps 512 numbers per token")
    assert page.locator('[data-number="knob-n_kv_heads"]').input_value() == "4"
    page.fill("#knob-n_kv_heads", "3")
    expect(page.get_by_role("alert")).to_contain_text("3, which does not divide n_heads = 8; allowed: 1, 2, 4, 8")
    expect(page.locator("#pictures")).to_contain_text("keeps 512 numbers per token")
    page.fill("#knob-n_kv_heads", "1")
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page).to_have_url(f"{home}/choice/gqa?n_kv_heads=1")


def test_a_scaling_brings_its_own_parameters(home: str, page: Page):
    page.goto(f"{home}/choice/rope")
    expect(page.locator("#knob-original")).to_have_count(0)
    page.select_option("#knob-scaling", "yarn")
    expect(page.locator("#knob-original")).to_have_value("8192")
    expect(page.locator("#pictures figcaption").first).to_contain_text("yarn × 4")
    page.select_option("#knob-scaling", "none")
    expect(page.locator("#knob-original")).to_have_count(0)
    expect(page).to_have_url(f"{home}/choice/rope")


def test_the_workbench_leads_to_a_choice_and_back_with_its_changes(home: str, page: Page):
    page.goto(f"{home}/m/llama-3-8b?model.attention.n_kv_heads=2")
    page.get_by_role("link", name="Explain model.attention.n_kv_heads").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("GQA")
    expect(page.locator(".there")).to_contain_text("llama-3-8b with its changes makes this choice")
    expect(page.locator("#knob-n_heads")).to_have_value("32")
    page.locator(".there h2 a").click()
    expect(page).to_have_url(f"{home}/m/llama-3-8b?model.attention.n_kv_heads=2")


def test_a_claim_is_replayed_in_the_lab(home: str, page: Page):
    page.goto(f"{home}/choice/swiglu")
    page.get_by_role("button", name="Replay gates").or_(page.get_by_role("link", name="Replay gates")).click()
    expect(page).to_have_url(f"{home}/studies/new?from=gates&scale=smoke")
    expect(page.locator("#text")).to_have_value(re.compile("swiglu"))


def test_paper_shows_pictures_without_their_sliders(home: str, page: Page):
    page.goto(f"{home}/choice/rope")
    page.emulate_media(media="print")
    expect(page.locator(".knobs")).to_be_hidden()
    expect(page.locator("#pictures svg").first).to_be_visible()
