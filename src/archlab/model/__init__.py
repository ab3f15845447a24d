"""PyTorch modules of the model. Importing the package registers the implementation of every component kind."""

from archlab.config.core.registry import import_all

import_all(__name__, __path__)
