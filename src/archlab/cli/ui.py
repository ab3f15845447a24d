"""The command `archlab ui`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from archlab.cli.arguments import Flag


def run(
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8765,
    host: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    open: Flag = False,
) -> None:
    """Open the laboratory in a browser: change a choice and see its diagram, cost and findings.

    Prints a link that works once. The server answers only this machine, shows configs of the current folder, and ends
    with Ctrl-C.

    Parameters
    ----------
    port
        Port to listen on. 0: any free port.
    host
        Host name under which browsers reach the server, for example in a container. The server then listens on all
        addresses of the machine. Repeat the option for several names.
    open
        Open the link in a browser.
    """
    try:
        from archlab.ui.server import serve

        serve(Path(), port, "0.0.0.0" if host else "127.0.0.1", host, open_browser=open)
    except KeyboardInterrupt:
        pass  # the usual end of a server: there is nothing to continue
