"""`archlab` and `python -m archlab`: the command, with Ctrl-C heard from the first import on."""

import io
import sys


def main() -> int:
    """Run the command of sys.argv; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows ? in its place
    try:
        from archlab.cli.app import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
