"""`archlab` and `python -m archlab`: the command, with Ctrl-C heard from the first import on."""

import sys


def main() -> int:
    """Run the command of sys.argv; its exit code."""
    try:
        from archlab.cli.app import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
