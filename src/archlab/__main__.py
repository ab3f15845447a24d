"""`archlab` and `python -m archlab`: the command, with Ctrl-C handled from the first import on."""

import io
import sys
from contextlib import suppress

from archlab.interrupt import INTERRUPTED, exit_now, exit_on_interrupt, install_handler


def main() -> int:
    """Run the command of sys.argv; its exit code."""
    install_handler()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ? in its place
    try:
        from archlab.cli.app import main as run

        code = run()
    except KeyboardInterrupt:  # in that import
        print(INTERRUPTED, file=sys.stderr)
        code = 130
    if code == 130:
        with suppress(OSError, ValueError, AttributeError):  # stdout is full, closed, or not there
            sys.stdout.flush()
        exit_now()
    exit_on_interrupt()
    return code


if __name__ == "__main__":
    sys.exit(main())
