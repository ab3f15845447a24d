"""`archlab ui` as a process, and pages of a browser that has opened its first link."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page


class Laboratory:
    """A running server, and a browser that has opened its first link."""

    def __init__(self, folder: Path, browser: Browser) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "archlab", "ui", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        self.link = self.process.stdout.readline().split()[-1]
        self.home = self.link.partition("/?")[0]
        self.context = browser.new_context()
        page = self.context.new_page()
        page.goto(self.link)
        assert page.url == f"{self.home}/m/llama-3-8b"
        page.close()

    @contextmanager
    def page(self) -> Iterator[Page]:
        """Open a page that must log no error, and must send no request to another host."""
        page = self.context.new_page()
        problems = list[str]()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        hosts = set[str]()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        yield page
        page.close()
        assert problems == []
        assert hosts - {urlsplit(self.home).netloc, ""} == set()


PICTURES_THAT_LEAVE_THEIR_PLACE = """() => [...document.querySelectorAll("main svg")].filter((svg) => {
  const place = svg.parentElement.closest("section, figure, td, .plot");
  if (!place || svg.parentElement.closest("svg, details:not([open])")) return false;
  const [own, around] = [svg.getBoundingClientRect(), place.getBoundingClientRect()];
  const scrolls = getComputedStyle(place).overflowX !== "visible";
  const isWide = !scrolls && (own.left < around.left - 1 || own.right > around.right + 1);
  return isWide || own.top < around.top - 1 || own.bottom > around.bottom + 1;
}).map((svg) => svg.outerHTML.slice(0, 120))"""
"""Script that returns the pictures that reach beyond their section, figure or cell, and so cover something else."""


def check_screen(page: Page, address: str, scheme: str) -> None:
    """Check that a screen and its pictures fit a desk and a phone, and that axe finds nothing serious, in a color
    scheme."""
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(PICTURES_THAT_LEAVE_THEIR_PLACE) == []
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
        found = Axe().run(page).response["violations"]
        serious = {
            rule["id"]: rule["nodes"][0]["html"][:200]
            for rule in found
            if rule["impact"] in ("serious", "critical") or rule["id"] == "empty-table-header"
        }
        assert serious == {}


@contextmanager
def served(folder: Path, browser: Browser) -> Iterator[Laboratory]:
    """Start the server in a folder, and stop it as Ctrl-C does."""
    laboratory = Laboratory(folder, browser)
    yield laboratory
    laboratory.process.send_signal(signal.SIGINT)
    assert laboratory.process.wait(90) == 0
