"""`archlab ui` in a real browser: each screen, its main interaction, and what a person with a phone or a screen reader
meets."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from ui_server import Laboratory, check_screen, served

from archlab.config.core.yaml_text import to_yaml
from browsers import needs_browser
from sample_run import begun
from tiny import MODEL, TRAIN

pytestmark = needs_browser

SCREENS = [
    "/m/llama-3-8b",
    "/m/t5-small",
    "/vs/llama-3-8b/gemma-2-9b",
    "/vs/llama-3-8b/deepseek-v3/gpt-2",
    "/models",
    "/models?heads=GQA&year=2024&x=position&y=mixers&mine=llama-3-8b",
    "/models/deepseek-v3",
    "/models/t5-11b",
    "/models/gpt-4",
    "/vs/llama-3-8b/llama-3-8b?b.model.attention.n_kv_heads=2",
    "/choices",
    "/choice/swiglu",
    "/choice/rope",
    "/choice/model.norm.kind",
    "/search?q=gqa",
    "/studies",
    "/studies/new",
    "/runs/of/runs/one",
]


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    folder = tmp_path_factory.mktemp("lab")
    begun(folder / "runs/one", steps=300)
    with served(folder, browser) as laboratory:
        yield laboratory


@pytest.fixture
def page(lab: Laboratory) -> Iterator[Page]:
    with lab.page() as page:
        yield page


@pytest.mark.parametrize("path", SCREENS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screen_fits_a_phone_and_has_no_serious_finding_of_axe(lab: Laboratory, page: Page, path: str, scheme: str):
    check_screen(page, lab.home + path, scheme)


def test_a_changed_choice_changes_diagram_numbers_and_link(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/m/llama-3-8b")
    cache = page.get_by_text("KV cache and states").locator("xpath=following-sibling::dd/b")
    expect(cache).to_have_text("1 GiB")
    page.fill("#model-attention-n_kv_heads", "2")
    page.press("#model-attention-n_kv_heads", "Tab")
    expect(cache).to_have_text("256 MiB")
    expect(page.locator(".diagram")).to_contain_text("32 query, 2 KV heads × 128")
    assert page.url == f"{lab.home}/m/llama-3-8b?model.attention.n_kv_heads=2"
    page.fill("#model-attention-n_kv_heads", "7")
    page.press("#model-attention-n_kv_heads", "Tab")
    expect(page.get_by_role("alert")).to_contain_text("7 does not divide n_heads = 32")
    expect(cache).to_have_text("256 MiB")
    page.reload()
    expect(cache).to_have_text("256 MiB")
    page.click("#undo")
    expect(cache).to_have_text("1 GiB")


def test_any_field_is_set_by_its_name_and_a_refused_value_is_undone_alone(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/m/gpt-2")
    page.get_by_label("Field", exact=True).fill("model.head.softcap")
    page.keyboard.press("Tab")
    page.keyboard.type("30")
    page.keyboard.press("Tab")
    page.wait_for_url("**/m/gpt-2?model.head.softcap=30")
    page.fill("#model-n_layers", "-3")
    page.press("#model-n_layers", "Tab")
    expect(page.get_by_role("alert")).to_contain_text("-3")
    page.click("#undo")
    expect(page.get_by_role("alert")).to_have_text("")
    expect(page.locator("#model-n_layers")).to_have_value("12")
    expect(page).to_have_url(f"{lab.home}/m/gpt-2?model.head.softcap=30")
    page.click("#undo")
    expect(page).to_have_url(f"{lab.home}/m/gpt-2")


def test_a_box_tells_its_numbers_by_pointer_and_by_keyboard(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/m/llama-3-8b")
    box = page.locator(".diagram .box", has_text="SwiGLU")
    box.hover()
    expect(page.locator("#part")).to_contain_text("parameters 5.64B")
    page.locator(".diagram .box", has_text="Grouped-query attention").focus()
    expect(page.locator("#part")).to_contain_text("parameters 1.34B")
    for model, title, numbers in (
        ("gpt-2", "Learned positions", "parameters 786K"),
        ("t5-base", "shared by both stacks", "shared with the decoder"),
    ):
        page.goto(f"{lab.home}/m/{model}")
        page.locator(".diagram .box", has_text=title).first.hover()
        expect(page.locator("#part")).to_contain_text(numbers)


def test_the_slider_names_the_maximum_and_the_power_of_two_below_it(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/m/deepseek-v3")
    slider, shown = page.locator("#context"), page.locator("label[for=context] output")
    for step, tokens in ((-1, "131,072 tokens"), (1, "163,840 tokens")):
        slider.evaluate(
            """(slider, step) => {
                slider.value = Number(slider.value) + step;
                slider.dispatchEvent(new Event("input", {bubbles: true}));
            }""",
            step,
        )
        expect(shown).to_have_text(tokens)


def test_a_change_keeps_the_place_of_the_keyboard_and_what_is_open(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/m/llama-3-8b")
    page.get_by_text("All numbers").click()
    page.fill("#model-attention-n_kv_heads", "2")
    page.press("#model-attention-n_kv_heads", "Tab")
    page.wait_for_url("**n_kv_heads=2")
    expect(page.get_by_role("link", name="Explain model.attention.head_dim")).to_be_focused()
    expect(page.locator("#main details[open]")).to_have_count(1)


def test_a_newer_change_replaces_an_older_one_without_an_error(lab: Laboratory, page: Page):
    """The fixture fails if the console shows an error."""
    page.goto(f"{lab.home}/m/llama-3-8b")
    page.route("**/m/llama-3-8b?*", lambda route: (time.sleep(0.2), route.continue_()))
    aborted = list[str]()
    page.on("requestfailed", lambda request: aborted.append(request.url))
    page.evaluate("""() => {
      const heads = document.getElementById("model-attention-n_kv_heads");
      for (const value of ["4", "2", "1"]) {
        heads.value = value;
        heads.dispatchEvent(new Event("change", {bubbles: true}));
      }
    }""")
    page.wait_for_url("**n_kv_heads=1")
    assert len(aborted) == 2


def test_a_slow_screen_shows_that_it_is_being_computed(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/studies")
    waiting = list[Route]()
    page.route("**/choices", lambda route: waiting.append(route))
    shown = page.evaluate("""async () => {
      document.querySelector("nav a[href='/choices']").click();
      await new Promise((done) => setTimeout(done, 600));
      return document.getElementById("waiting").textContent;
    }""")
    assert shown == "Computing …"
    waiting.pop().continue_()
    page.wait_for_url("**/choices")
    expect(page.locator("#waiting")).to_be_empty()


def test_the_search_finds_models_and_choices_also_in_chinese(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/studies")
    page.keyboard.press("/")
    page.keyboard.type("旋转位置编码")
    expect(page.locator("#found")).to_contain_text("RoPE")
    page.locator("#found a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("RoPE")
    assert page.locator("math").count() > 0
    page.fill("#search", "gemma-2")
    expect(page.locator("#found")).to_contain_text("gemma-2-9b")
    page.press("#search", "ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#found a").nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#search")).to_be_focused()


def test_the_search_finds_what_was_typed_while_the_page_loaded(lab: Laboratory, page: Page):
    requests: list[Route] = []
    page.route("**/htmx.min.js", lambda route: requests.append(route))
    page.goto(f"{lab.home}/choices", wait_until="commit")
    page.fill("#search", "gemma-2")
    while not requests:
        page.wait_for_timeout(10)
    requests[0].continue_()
    expect(page.locator("#found")).to_contain_text("gemma-2-9b")


def test_undo_goes_back_over_all_changes_and_a_reset_also_after_a_reload(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/m/gpt-2")
    for n_layers in ("9", "6", "3"):
        page.fill("#model-n_layers", n_layers)
        page.press("#model-n_layers", "Tab")
        page.wait_for_url(re.compile(f"model.n_layers={n_layers}$"))
    page.click("#reset")
    expect(page).to_have_url(f"{lab.home}/m/gpt-2")
    page.reload()
    for query in ("?model.n_layers=3", "?model.n_layers=6", "?model.n_layers=9", ""):
        page.click("#undo")
        expect(page).to_have_url(f"{lab.home}/m/gpt-2{query}")
        page.wait_for_load_state()  # the URL changes before the script of the page listens
    page.click("#undo")
    page.wait_for_timeout(300)
    expect(page).to_have_url(f"{lab.home}/m/gpt-2")


def test_undo_leaves_the_workbench_open(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/models")
    page.goto(f"{lab.home}/m/gpt-2")
    page.click("#undo")
    page.fill("#model-n_layers", "6")
    page.press("#model-n_layers", "Tab")
    page.wait_for_url(re.compile("model.n_layers=6"))
    page.click("#undo")
    expect(page).to_have_url(f"{lab.home}/m/gpt-2")
    page.click("#undo")
    page.wait_for_timeout(500)
    expect(page).to_have_url(f"{lab.home}/m/gpt-2")


def test_a_study_is_written_from_answers(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/studies")
    page.get_by_role("button", name="New study").click()
    page.fill("#question", "Is a window enough?")
    page.fill("#arms", "full:\nwindow: model.attention.window=64")
    page.get_by_role("button", name="Write the study file").click()
    expect(page.locator("#text")).to_have_value(re.compile("question: 'Is a window enough\\?'"))
    page.get_by_text("Check and estimate").click()
    expect(page.get_by_role("row", name=re.compile("^window"))).to_contain_text("model.attention.window: 64")


def test_a_changed_config_is_compared_and_the_comparison_is_saved(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/m/gpt-2")
    page.fill("#model-n_layers", "6")
    page.press("#model-n_layers", "Tab")
    page.wait_for_url(re.compile("model.n_layers=6"))
    expect(page.locator(".htmx-request, .htmx-swapping, .htmx-settling")).to_have_count(
        0
    )  # htmx may still replace the box
    page.focus("#with")
    expect(page.locator("#all-configs option[value='runs/one']")).to_be_attached()
    page.fill("#with", "gpt-2-xl")
    page.press("#with", "Enter")
    expect(page).to_have_url(f"{lab.home}/vs/gpt-2/gpt-2-xl?a.model.n_layers=6")
    expect(page.get_by_role("row", name=re.compile("^n_layers"))).to_contain_text("6")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save differences").click()
    assert download.value.suggested_filename == "gpt-2-with-model.n-layers-6-gpt-2-xl-differences.html"
    saved = lab.context.new_page()
    saved.goto(f"file://{shutil.copy(download.value.path(), lab.folder / 'saved.html')}")
    expect(saved.get_by_role("heading", level=1)).to_contain_text("gpt-2-xl")
    saved.close()


def test_the_curve_of_a_run_grows_without_reloading(lab: Laboratory, page: Page):
    folder = begun(lab.folder / "runs/growing", steps=150)
    page.goto(f"{lab.home}/studies")
    page.get_by_role("link", name="runs/growing").click()
    expect(page.locator("dl")).to_contain_text("9.6K of 32K tokens")
    begun(folder, steps=400)
    expect(page.locator("dl")).to_contain_text("25.6K of 32K tokens")
    expect(page.locator("polyline")).to_have_count(2)


def test_a_page_says_when_the_server_does_not_answer(lab: Laboratory, page: Page):
    begun(lab.folder / "runs/alone", steps=150)
    page.route("**/runs/live/**", lambda route: route.fulfill(status=204))  # ends the stream and logs no error
    page.goto(f"{lab.home}/runs/of/runs/alone")
    expect(page.locator("#waiting")).to_have_text("The server does not answer, so this page is old.")


def test_differences_become_a_study(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/vs/llama-3-8b/gemma-2-9b")
    expect(page.get_by_role("row", name=re.compile("mlp.activation"))).to_contain_text("gelu_tanh")
    with page.expect_download() as download:
        page.get_by_text("Save as a study file").click()
    saved = download.value.path()
    shown = subprocess.run(
        [sys.executable, "-m", "archlab", "study", "show", "study.yaml"],
        cwd=shutil.copy(saved, lab.folder / "study.yaml").parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"second +first +.*model\.", shown.stdout)
    assert "model.mlp.activation: gelu_tanh" in shown.stdout


def test_a_study_is_checked_started_watched_and_paused(lab: Laboratory, page: Page):
    page.goto(f"{lab.home}/studies/new")
    page.fill("#text", page.input_value("#text").replace("256K", "4M"))
    page.fill("#name", "from-the-browser")
    page.get_by_text("Check and estimate").click()
    expect(page.locator("dl")).to_contain_text("bits per byte")
    page.get_by_role("button", name="Start training").click()
    expect(page).to_have_url(f"{lab.home}/studies/of/studies/from-the-browser")
    expect(page.locator("td.training").first).to_be_visible(timeout=120_000)
    assert "The answer appears when all planned runs have ended" in page.inner_text("main")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible(timeout=60_000)
    assert (lab.folder / "studies/from-the-browser/study.yaml").is_file()
    page.goto(f"{lab.home}/studies")
    expect(page.get_by_role("row", name=re.compile("from-the-browser"))).to_contain_text("not finished")


def test_a_study_ends_with_its_answer_and_one_more_seed_is_trained(lab: Laboratory, page: Page):
    (lab.folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 2000)
    (lab.folder / "base.yaml").write_text(to_yaml({"model": MODEL, "train": TRAIN}))
    study = {
        "question": "Which?", "base": "base.yaml", "set": {"data.path": "text.txt"}, "budget": {"tokens": 640},
        "seeds": 2, "arms": {"a": {}, "b": {"model.norm.kind": "layernorm"}},
    }  # fmt: skip
    page.goto(f"{lab.home}/studies/new")
    page.fill("#text", to_yaml(study))
    page.fill("#name", "short")
    page.get_by_text("Check and estimate").click()
    page.get_by_role("button", name="Start training").click()
    expect(page.locator("p.answer")).to_be_visible(timeout=180_000)
    expect(page.locator("td.finished")).to_have_count(4)
    with page.expect_navigation():
        page.get_by_role("button", name="Train one more seed").click()
    expect(page.locator("td.finished")).to_have_count(6, timeout=180_000)
    expect(page.get_by_role("button", name="Train one more seed")).to_be_visible(timeout=180_000)
    page.get_by_role("button", name="Report", exact=True).click()
    expect(page.locator("body")).to_contain_text("not planned")
    for scheme in ("light", "dark"):
        check_screen(page, page.url, scheme)
