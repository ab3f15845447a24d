"""Laboratories for the tests of the real command line, and a browser for those of pages."""

import pytest
from lab import Lab
from names import STUDY, results

from browsers import CHROMIUM


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def lab(tmp_path, cache):
    return Lab(tmp_path, cache)


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory, cache):
    """Return one laboratory for all tests of a file, which build on each other's results."""
    return Lab(tmp_path_factory.mktemp("lab"), cache)


@pytest.fixture(scope="module")
def study(shared_lab):
    """Return the laboratory with the study in it."""
    (shared_lab.folder / "names.yaml").write_text(STUDY)
    return shared_lab


@pytest.fixture(scope="module")
def finished(study):
    """Return the study folder after an uninterrupted run, and the printed output."""
    done = study.run("study", "run", "names.yaml", "--out", "finished", "--workers", "1")
    return study.folder / "finished", done.stdout, results(study.folder / "finished")


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
