"""`archlab ui` as a process of its own, under attack: each request gets a 4xx, and the server goes on."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest

from archlab.ui.guard import LONGEST_BODY, SECONDS_TO_SEND


class Server(NamedTuple):
    """A running server, and the headers of a browser that may use it."""

    process: subprocess.Popen[str]
    port: int
    headers: dict[str, str]

    def send(self, request: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS_TO_SEND + 10)
        connection.sendall(request)
        return connection

    def request(self, line: str, body: bytes = b"", **changed: str | None) -> bytes:
        """Return an HTTP request. `changed` replaces headers of the browser, and None removes one."""
        own = {"Content-Length": str(len(body))} if body else {}
        headers = {**self.headers, **own, **{name.replace("_", "-"): value for name, value in changed.items()}}
        lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
        return "\r\n".join([*lines, "", ""]).encode() + body


def status(connection: socket.socket) -> int:
    """Return the status of the answer. Its body must say no more than a sentence or a page for people."""
    answer = b""
    with connection:
        while b"\r\n\r\n" not in answer and (part := connection.recv(65_536)):
            answer += part
    assert b"Traceback" not in answer
    return int(answer.split(b" ", 2)[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "archlab", "ui", "--port", "0"],
        cwd=tmp_path_factory.mktemp("lab"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    link = process.stdout.readline().split()[-1]
    port = int(re.findall(r":(\d+)/", link)[0])
    first = Server(process, port, {"Host": f"127.0.0.1:{port}", "Connection": "close"})
    connection = first.send(first.request(f"GET {link.partition(str(port))[2]}"))
    with connection:
        (cookie,) = re.findall(rb"set-cookie: ([^;]+);", connection.recv(65_536))
    here = first.headers | {"Cookie": cookie.decode(), "Origin": f"http://127.0.0.1:{port}"}
    yield first._replace(headers=here)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.count("Traceback") == 0


PLAN, BENCH = "POST /studies/plan", "GET /m/llama-3-8b"
MANY = b"&".join(b"f%d=1" % n for n in range(10_000))


def test_every_hostile_request_gets_a_4xx(server: Server):
    long = "a" * 100_000
    query = MANY.decode()
    attacks = {
        "a form with many fields": server.request(PLAN, MANY[:LONGEST_BODY]),
        "a form with 10,000 fields": server.request(PLAN, MANY),
        "a form of unstated length": server.request(PLAN, Transfer_Encoding="chunked")
        + b"".join(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n" for _ in range(2)),
        "a form with a wrong length": server.request(PLAN, Content_Length="-1"),
        "two lengths": server.request(PLAN, Content_Length="5\r\nContent-Length: 6") + b"12345",
        "a query with 10,000 fields": server.request(f"{BENCH}?{query}"),
        "a query with many short fields": server.request(f"{BENCH}?{'&' * 5_000}"),
        "a long header": server.request(BENCH, Accept=long),
        "many headers": server.request(BENCH, Accept="\r\n".join(["x", *(f"X-{n}: 1" for n in range(10_000))])),
        "a long path": server.request(f"GET /m/{long}"),
        "a path within the limit": server.request(f"GET /m/{long[:30_000]}"),
        "another host": server.request(BENCH, Host="evil.example"),
        "no host": server.request(BENCH, Host=None),
        "two hosts": server.request(BENCH, Host=f"127.0.0.1:{server.port}\r\nHost: evil.example"),
        "another origin": server.request(PLAN, b"text=", Origin="http://evil.example"),
        "no origin": server.request(PLAN, b"text=", Origin=None),
        "no cookie": server.request(BENCH, Cookie=None),
        "another cookie": server.request(BENCH, Cookie=f"archlab-{server.port}=x"),
        "a null byte in a header": server.request(BENCH, Accept="a\0b"),
        "a null byte in the path": server.request("GET /m/a\0b"),
        "a null byte in a name": server.request("GET /m/a%00b"),
        "a null byte in a field": server.request(f"{BENCH}?model.norm.kind=%00"),
        "null bytes in a form": server.request(PLAN, b"name=%00&text=%00"),
        "bytes that are not UTF-8": server.request("GET /m/%ff%fe"),
        "a form that is not UTF-8": server.request(PLAN, b"text=\xff\xfe%ff"),
        "a way out": server.request("GET /m/..%2f..%2fetc%2fpasswd"),
        "a way out of a saved page": server.request("GET /save/run/..%2f..%2fetc"),
        "a way out of a run": server.request("GET /runs/live/../../etc"),
        "another method": server.request("TRACE /m/llama-3-8b"),
        "a whole address": server.request("GET http://evil.example/m/llama-3-8b"),
        "a config of 10^9 layers": server.request(f"{BENCH}?model.n_layers=1000000000"),
        "no HTTP": b"\0" * 1_000 + b"\r\n\r\n",
    }
    slow = server.send(server.request(PLAN, Content_Length="50") + b"text=")
    endless = server.send(server.request(PLAN, Transfer_Encoding="chunked") + b"1\r\nx\r\n")
    since = time.monotonic()
    statuses = {name: status(server.send(attack)) for name, attack in attacks.items()}
    assert {name: code for name, code in statuses.items() if not 400 <= code < 500} == {}
    assert [status(slow), status(endless)] == [408, 408]
    # Twenty attacks take a second on a quiet machine. A held server would not end at all.
    assert time.monotonic() - since < SECONDS_TO_SEND + 60
    with urlopen(Request(f"http://127.0.0.1:{server.port}/m/gpt-2", headers=server.headers)) as answer:
        assert answer.status == 200


def test_an_endless_body_of_a_link_does_not_hold_the_server(server: Server):
    connection = server.send(server.request(BENCH, Transfer_Encoding="chunked") + b"1\r\nx\r\n")
    assert status(connection) == 200


@pytest.mark.parametrize("part", [b"", b"GET /m/gpt-2 HTTP/1.1\r\nHost: 127", b"G"])
def test_a_request_that_does_not_arrive_is_not_waited_for(server: Server, part: bytes):
    with server.send(part) as connection:
        assert connection.recv(1) == b""  # the socket's own limit, which raises, is later


def test_a_connection_that_is_kept_serves_the_next_request(server: Server):
    asked = server.request("HEAD /m/gpt-2", Connection="keep-alive")
    with server.send(asked) as connection:
        for _ in range(2):
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
            time.sleep(SECONDS_TO_SEND - 2)  # together more than the limit, which starts again with each request
            connection.sendall(asked)
