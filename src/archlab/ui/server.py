"""The server of `archlab ui`: it listens on this machine and ends with Ctrl-C."""

import asyncio
import logging
import secrets
import signal
import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from archlab.errors import UserError
from archlab.ui.app import create_app
from archlab.ui.guard import SECONDS_TO_SEND
from archlab.ui.lab.processes import StudyProcesses

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Host names for which the server always answers."""


def serve(root: Path, port: int, address: str, hosts: Sequence[str], *, open_browser: bool) -> None:
    """Serve the screens for the folder `root` until Ctrl-C, which raises KeyboardInterrupt. Print the link first.

    Raise UserError if the port is in use, or if `address` is not one of this machine. Port 0 selects a free port.
    """
    listening = _listen(address, port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    processes = StudyProcesses()
    app = create_app(root, token, port, [*LOCAL, *hosts], processes)
    link = f"http://{hosts[0] if hosts else LOCAL[0]}:{port}/?token={token}"
    print(f"archlab ui: {link}\nThe link works once. Press Ctrl-C to stop.", flush=True)
    if open_browser:
        webbrowser.open(link)
    config = uvicorn.Config(
        app,
        http=_Protocol,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, app.state.stopping)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
        signal.signal(signal.SIGHUP, server.handle_exit)  # uvicorn handles the other signals
    try:
        server.run(sockets=[listening])
    finally:
        processes.stop()


class _Protocol(H11Protocol):
    """Protocol that closes a connection whose headers do not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(SECONDS_TO_SEND, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the headers are complete
            self._end_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(SECONDS_TO_SEND, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def _end_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()
        self._deadline = None


class _Server(uvicorn.Server):
    """Server that first ends the streams of events, which would otherwise never end."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        logging.getLogger("uvicorn.error").disabled = True  # it would report each answer that is not complete
        await super().shutdown(sockets)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sends answers without Nagle's delay only if the protocol is named.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
        listening.listen()  # a browser that is faster than the start of the server waits
    except OSError as error:
        listening.close()
        raise UserError(f"cannot listen on {address}, port {port}: {error.strerror}; choose another --port") from None
    return listening
