"""Laboratories for the tests of the real command line."""

import pytest
from lab import Lab


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def lab(tmp_path, cache):
    return Lab(tmp_path, cache)


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory, cache):
    """One for all tests of a file, whose tests build on each other's results."""
    return Lab(tmp_path_factory.mktemp("lab"), cache)
