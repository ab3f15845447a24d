"""The kinds of a layer's parts. Importing the package registers all of them."""

from archlab.config.core.registry import import_all

import_all(__name__, __path__)
