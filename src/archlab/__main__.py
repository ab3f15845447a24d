"""Entry point of `archlab` and `python -m archlab`. It handles Ctrl-C before it imports anything else."""

import io
import sys
from contextlib import suppress

from archlab.interrupt import INTERRUPTED, exit_now, exit_on_interrupt, install_handler


def main() -> int:
    """Run the command in sys.argv and return its exit code."""
    install_handler()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # if the terminal cannot show a character, show ? instead
    try:
        from archlab.cli.app import main as run

        code = run()
    except KeyboardInterrupt:  # during that import
        print(INTERRUPTED, file=sys.stderr)
        code = 130
    if code == 130:
        with suppress(OSError, ValueError, AttributeError):  # stdout is full, closed or None
            sys.stdout.flush()
        exit_now()
    exit_on_interrupt()
    return code


if __name__ == "__main__":
    sys.exit(main())
