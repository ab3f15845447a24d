"""The kinds of a layer's parts, a file each. Importing one registers all."""

from archlab.config.core.registry import import_all

import_all(__name__, __path__)
