"""Clear what this process knows about plug-ins."""

from archlab.config.core import plugins, registry, trust
from archlab.errors import OWN_CODE

STORES = (plugins._read, OWN_CODE, trust._named, trust._ran)


def plugin_modules() -> set[str]:
    """Return the modules that archlab has imported from files and that have registered a kind."""
    return {name for name in registered_modules() if name.startswith("archlab_plugin_")}


def registered_modules() -> set[str]:
    """Return all modules that have registered a kind."""
    return {module for section in registry._kinds.values() for modules in section.values() for module in modules}


def as_a_new_process() -> None:
    """Forget every plug-in, as if this process had imported none."""
    forget({name for name in registered_modules() if not name.startswith("archlab.")})


def forget(modules: set[str]) -> None:
    """Forget the kinds of these modules, and which plug-ins have been read."""
    for store in STORES:
        store.clear()
    for module in modules:
        registry.forget(module)
