"""What a process remembers of plug-ins, and how to forget it."""

from archlab.config.components import plugins
from archlab.config.core import trust
from archlab.errors import OWN_CODE

STORES = (plugins._registered, plugins._read, OWN_CODE, trust._named, trust._ran)


def as_a_new_process() -> None:
    """Forget every plug-in, as if this process had imported none."""
    for store in STORES:
        store.clear()
