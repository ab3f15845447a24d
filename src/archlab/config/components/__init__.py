"""Kinds of layer components. Importing the package registers all of them."""

from archlab.config.core.registry import import_all

import_all(__name__, __path__)
