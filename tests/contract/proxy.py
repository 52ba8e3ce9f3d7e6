"""Forward proxy: whole addresses over plain HTTP, tunnels by CONNECT.

It takes each host for this machine, so that a request for a host that only the proxy knows cannot go past it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection
from typing import Self
from urllib.parse import urlsplit

from tests.http_server import Handler, Server


class Proxy:
    """Proxy on a free port; `requests` are the first lines, `logins` their credentials."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.logins: list[str] = []
        owner = self

        class Forward(Handler):
            def answer(self) -> None:
                owner.requests.append(self.requestline)
                owner.logins.append(self.headers.get("Proxy-Authorization", ""))
                if self.command == "CONNECT":
                    return self._connect()
                parts, body = urlsplit(self.path), self.body()
                connection = HTTPConnection("127.0.0.1", parts.port, timeout=10)
                headers = {name: value for name, value in self.headers.items() if name != "Connection"}
                connection.request(self.command, self.path[len(f"http://{parts.netloc}") :], body, headers)
                answer = connection.getresponse()
                own = ("transfer-encoding", "content-length", "date", "server", "connection")
                given = {name: value for name, value in answer.getheaders() if name.lower() not in own}
                self.reply(answer.status, answer.read(), given)
                return connection.close()

            def _connect(self) -> None:
                port = int(self.path.rpartition(":")[2])
                with socket.create_connection(("127.0.0.1", port), 10) as far:
                    self.send_response(200)
                    self.end_headers()
                    back = threading.Thread(target=_copy, args=(far, self.connection), daemon=True)
                    back.start()
                    _copy(self.connection, far)
                    back.join(10)
                self.close_connection = True

        self._server = Server(Forward)
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
