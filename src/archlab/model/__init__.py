"""The model. Importing any of its modules registers the implementation of every kind."""

from archlab.config.core.registry import import_all

import_all(__name__, __path__)
