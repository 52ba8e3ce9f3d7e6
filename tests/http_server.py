"""Small HTTP servers on this machine."""

from __future__ import annotations

import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler, ABC):
    """Handler of requests of any method, which logs nothing and keeps connections."""

    protocol_version = "HTTP/1.1"

    @abstractmethod
    def answer(self) -> None:
        """Answer a request."""

    def _do(self) -> None:
        self.answer()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = _do  # noqa: N815

    def body(self) -> bytes:
        """Read the request's body."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer, with these headers besides or instead of its length."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """Server on a free port of this machine, which ignores clients that hang up."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        """Return the server's URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End the thread, and free the port."""
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """Print nothing: a test may read what its command prints."""


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve with this handler; yield the server's URL."""
    server = Server(handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.start()
    try:
        yield server.url.replace("http:", "https:") if tls else server.url
    finally:
        server.stop()
