"""Clear what this process knows about plug-ins."""

from archlab.config.core import plugins, registry, trust
from archlab.errors import OWN_CODE

STORES = (plugins._read, OWN_CODE, trust._named, trust._ran)


def as_a_new_process() -> None:
    """Forget every plug-in, as if this process had imported none."""
    for store in STORES:
        store.clear()
    for section in registry._kinds.values():
        for modules in section.values():
            for module in [name for name in modules if not name.startswith("archlab.")]:
                registry.forget(module)
