"""The model. Importing one of its modules registers what every kind is built into."""

from archlab.config.core.registry import import_all

import_all(__name__, __path__)
