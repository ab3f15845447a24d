"""The Chromium of the system, for tests of pages."""

import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
