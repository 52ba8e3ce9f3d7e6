"""S3 endpoint that refuses an expired session token like Amazon S3, and forwards other requests to a real endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

__all__ = ["TokenProxy", "token_proxy"]

_SESSION = "drill-session"
_PER_CONNECTION = {"connection", "expect", "keep-alive", "transfer-encoding", "content-length"}
"""Headers that are not forwarded."""
_REFUSAL = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
_SECONDS = 30.0


class TokenProxy(ThreadingHTTPServer):
    """Proxy in front of an S3 endpoint, on a free port."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(endpoint).netloc
        self.refused_below: str | None = None
        """Path below which the token is refused: `/` everywhere, `/BUCKET/` in one bucket, `None` nowhere."""
        self.refused: list[str] = []
        """Method and path of each refused request."""

    def environment(self) -> dict[str, str]:
        """Return the variables with which a worker uses this endpoint and the token."""
        return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_address[1]}", "AWS_SESSION_TOKEN": _SESSION}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: TokenProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        below, token = self.server.refused_below, self.headers.get("X-Amz-Security-Token")
        if below is not None and self.path.startswith(below) and token == _SESSION:
            self.server.refused.append(f"{self.command} {self.path}")
            self._answer(400, {"Content-Type": "application/xml"}, _REFUSAL)
            return
        connection = HTTPConnection(self.server.upstream, timeout=_SECONDS)
        try:
            connection.request(
                self.command, self.path, body, {**_forwarded(self.headers), "Content-Length": str(len(body))}
            )
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        # In a response to HEAD, the length is the object's.
        length = response.getheader("Content-Length", "0") if self.command == "HEAD" else ""
        self._answer(response.status, _forwarded(dict(response.getheaders())), content, length)

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes, length: str = "") -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": length or str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _PER_CONNECTION}


@contextmanager
def token_proxy(endpoint: str) -> Iterator[TokenProxy]:
    """Start a proxy."""
    with TokenProxy(endpoint) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
