"""Windows of synthetic tasks.

Importing the package registers the functions that generate the windows of each task.
"""

from archlab.config.core.registry import import_all

import_all(__name__, __path__)
