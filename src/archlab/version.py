"""Version of archlab."""

__version__ = "0.1.0"
