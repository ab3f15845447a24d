"""Start worker processes safely from any script or command."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType

from archlab.interrupt import interrupts_blocked

_one_at_a_time = threading.Lock()


@contextmanager
def starting_workers() -> Iterator[None]:
    """Within the block, processes started by multiprocessing ignore Ctrl-C and do not import the caller's script.

    By default, multiprocessing imports the main script in each new process, because the process may call functions of
    the script. A script without `if __name__ == "__main__"` would then run again. archlab's workers do not need the
    script, so they get an empty `__main__` module.
    """
    resource_tracker.ensure_running()  # otherwise the first process starts it, which unblocks Ctrl-C
    with _one_at_a_time, interrupts_blocked():
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script
