"""Local stand-in for the Hugging Face hub: a server with one model, which huggingface_hub downloads as usual."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODEL = "some-org/small-1"
COMMIT = "c0ffee" + "0" * 34


class Answers(BaseHTTPRequestHandler):
    """Answers to the requests of `snapshot_download`: the model's commit, its list of files, and each file."""

    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Path, requested: list[str], *args) -> None:
        self.folder, self.requested = folder, requested
        super().__init__(*args)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = {str(file.relative_to(self.folder)): file for file in self.folder.rglob("*") if file.is_file()}
        if path in (f"/api/models/{MODEL}", f"/api/models/{MODEL}/revision/main"):
            self._send(json.dumps({"id": MODEL, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}))
        elif path.startswith(f"/api/models/{MODEL}/tree/"):
            entries = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": _digest(file)}
                for name, file in files.items()
            ]
            self._send(json.dumps(entries))
        elif path.startswith(f"/{MODEL}/resolve/") and (name := path.split("/", 5)[5]) in files:
            if self.command == "GET":
                self.requested.append(name)
            self._send(files[name].read_bytes(), _digest(files[name]))
        else:
            code = "EntryNotFound" if path.startswith(f"/{MODEL}/") else "RepoNotFound"
            self._send("", status=404, code=code)

    do_HEAD = do_GET

    def _send(self, content: str | bytes, digest: str | None = None, status: int = 200, code: str = "") -> None:
        body = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, "X-Error-Code": code}
        for name, value in {**headers, "ETag": f'"{digest}"' if digest else ""}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args) -> None:
        pass


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as the model MODEL. Yield the hub's address, and the list of files downloaded so far."""
    requested = list[str]()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Answers, folder, requested))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requested
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
