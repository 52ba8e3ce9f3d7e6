"""The part of the Hugging Face hub's HTTP interface that `datasets` needs to load a dataset by its name."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

__all__ = ["serve_hub"]

_COMMIT = "a" * 40


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    repository = ""
    files: dict[str, bytes] = {}

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        about, resolve = f"/api/datasets/{self.repository}", f"/datasets/{self.repository}/resolve/"
        if path in (about, f"{about}/revision/{_COMMIT}"):
            siblings = [{"rfilename": name} for name in self.files]
            described = {"id": self.repository, "sha": _COMMIT, "private": False, "tags": [], "siblings": siblings}
            self._answer(200, json.dumps(described).encode())
        elif path == f"{about}/tree/{_COMMIT}":
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha256(data).hexdigest()}
                for name, data in self.files.items()
            ]
            self._answer(200, json.dumps(tree).encode())
        elif path.startswith(resolve) and (name := path.removeprefix(resolve).partition("/")[2]) in self.files:
            data = self.files[name]
            self._answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=_COMMIT)
        else:
            known = path.startswith((about, resolve))
            self._answer(404, b"{}", X_Error_Code="EntryNotFound" if known else "RepoNotFound")

    do_HEAD = do_GET  # noqa: N815 - the name is the standard library's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def serve_hub(repository: str, files: dict[str, bytes]) -> Iterator[str]:
    """A hub with one dataset: what to set HF_ENDPOINT to."""
    handler = type("Hub", (_Hub,), {"repository": repository, "files": files})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
