"""Forward proxy: whole addresses over plain HTTP, tunnels by CONNECT.

It takes each host for this machine, so that a request for a host that only the proxy knows cannot go past it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit


class Proxy:
    """Proxy on a free port; `requests` are the first lines, `logins` their credentials."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.logins: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                owner.requests.append(self.requestline)
                owner.logins.append(self.headers.get("Proxy-Authorization", ""))
                parts, body = urlsplit(self.path), self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = HTTPConnection("127.0.0.1", parts.port, timeout=10)
                headers = {name: value for name, value in self.headers.items() if name != "Connection"}
                connection.request(self.command, self.path[len(f"http://{parts.netloc}") :], body, headers)
                answer = connection.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "date", "server", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)
                connection.close()

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

            def do_CONNECT(self) -> None:
                owner.requests.append(self.requestline)
                owner.logins.append(self.headers.get("Proxy-Authorization", ""))
                port = int(self.path.rpartition(":")[2])
                with socket.create_connection(("127.0.0.1", port), 10) as far:
                    self.send_response(200)
                    self.end_headers()
                    back = threading.Thread(target=_copy, args=(far, self.connection), daemon=True)
                    back.start()
                    _copy(self.connection, far)
                    back.join(10)
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
