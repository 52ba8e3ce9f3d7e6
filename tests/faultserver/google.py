"""The part of Google's XML endpoint that Amazon's protocol has not: generations, and preconditions on them."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["GoogleServer"]

_PAGE = 3


class GoogleServer:
    """Objects of one bucket, each with its generation."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[int, bytes]] = {}
        self.lock = threading.Lock()
        self.authorizations: list[str] = []
        self.tokens_given = 0
        self.refusals: list[int] = []
        """Statuses that the metadata server gives before its first token."""
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    owner: GoogleServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self._reply(status, f"<Error><Code>{code}</Code></Error>".encode())

    @staticmethod
    def _told(generation: int, data: bytes) -> dict[str, str]:
        etag = hashlib.md5(data).hexdigest()  # noqa: S324
        return {
            "ETag": f'"{etag}"',
            "x-goog-generation": str(generation),
            "Last-Modified": "Fri, 20 Nov 2026 12:00:00 GMT",
        }

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        path = unquote(urlsplit(self.path).path)
        with self.server.owner.lock:
            self.server.owner.authorizations.append(self.headers["Authorization"])
            generation = self.server.owner.objects.get(path, (0, b""))[0]
            wanted = self.headers.get("x-goog-if-generation-match")
            if wanted is None or int(wanted) != generation:
                return self._error(412, "PreconditionFailed")
            new = 1 + max((number for number, _ in self.server.owner.objects.values()), default=0)
            self.server.owner.objects[path] = (new, data)
        return self._reply(200, headers=self._told(new, data))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.startswith("/computeMetadata/"):
            assert self.headers["Metadata-Flavor"] == "Google"
            if self.server.owner.refusals:
                return self._reply(self.server.owner.refusals.pop(0))
            self.server.owner.tokens_given += 1
            token = {"access_token": f"token-{self.server.owner.tokens_given}", "expires_in": 3600}
            return self._reply(200, json.dumps(token).encode())
        self.server.owner.authorizations.append(self.headers["Authorization"])
        if "list-type" in parts.query:
            return self._list(unquote(parts.path), parse_qs(parts.query))
        found = self.server.owner.objects.get(unquote(parts.path))
        if found is None:
            return self._error(404, "NoSuchKey")
        headers = self._told(*found)
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != headers["ETag"]:
            return self._error(412, "PreconditionFailed")
        return self._give(found[1], headers)

    def _give(self, data: bytes, headers: dict[str, str]) -> None:
        asked = self.headers.get("Range", "")
        if not asked:
            return self._reply(200, data, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            return self._error(416, "InvalidRange")
        part = data[int(first) : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return self._reply(206, part, headers)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
        root = bucket.rstrip("/") + "/"
        names = sorted(path[len(root) :] for path in self.server.owner.objects if path.startswith(root + prefix))
        names = [name for name in names if name > after]
        entries = ""
        for name in names[:_PAGE]:
            generation, data = self.server.owner.objects[root + name]
            etag = escape(self._told(generation, data)["ETag"])
            entries += f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><ETag>{etag}</ETag></Contents>"
        more = f"<NextContinuationToken>{escape(names[_PAGE - 1])}</NextContinuationToken>" if names[_PAGE:] else ""
        state = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        self._reply(200, f"<ListBucketResult>{state}{more}{entries}</ListBucketResult>".encode())
