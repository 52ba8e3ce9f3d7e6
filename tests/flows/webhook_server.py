"""Local receivers of alerts: a webhook, and a proxy that simulates internet hosts."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.certificates import make_certificate
from tests.http_server import Handler, Server, serving


class Receiver:
    """Webhook that keeps requests, and answers as configured."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.times: list[datetime] = []
        """Time of each request in `got`."""
        self.answers: list[int] = []
        self.asked = 0
        self.answer_seconds = 0.0
        outer = self

        class Webhook(Handler):
            def answer(self) -> None:
                body = self.body()
                outer.asked += 1
                time.sleep(outer.answer_seconds)
                status = outer.answers.pop(0) if outer.answers else 200
                if status == 200:
                    outer.times.append(datetime.now(UTC))
                    outer.got.append(json.loads(body))
                self.reply(status)

        self.server = Server(Webhook)
        self.url = f"{self.server.url.replace('http:', 'json:')}/"
        self.server.start()


@contextmanager
def receiver(block: str = "") -> Iterator[Receiver]:
    """Start a webhook on a free port, as the address of the Prefect server's block `apprise-url/BLOCK` if named."""
    item = Receiver()
    try:
        if block:
            from plumbline.tasks.prefect_client.notifications import AppriseUrl  # noqa: PLC0415 - asks a server

            AppriseUrl(url=item.url).save(block, overwrite=True)
        yield item
    finally:
        item.server.stop()


@dataclass
class Internet:
    """Requests by host through the proxy, and the statuses to answer."""

    variables: dict[str, str] = field(default_factory=dict)
    """The environment in which HTTPS clients come here."""
    got: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    """Characters of `content` above which a host answers 400, as Discord does."""


@contextmanager
def internet(folder: Path, hosts: tuple[str, ...]) -> Iterator[Internet]:
    """Start a proxy that answers for these hosts."""
    tls, certificate, seen = make_certificate(folder, hosts), folder / "ca.pem", Internet()

    class Proxy(Handler):
        def answer(self) -> None:
            self.send_response(200, "Connection established")
            self.end_headers()
            with suppress(OSError), tls.wrap_socket(self.connection, server_side=True) as plain:
                _answer(plain, self.path.partition(":")[0], seen)
            self.close_connection = True

    with serving(Proxy) as url:
        seen.variables = {
            "HTTPS_PROXY": url, "NO_PROXY": "127.0.0.1,localhost", "REQUESTS_CA_BUNDLE": str(certificate),
            "SSL_CERT_FILE": str(certificate),
        }  # fmt: skip
        yield seen


def _answer(plain: socket.socket, host: str, seen: Internet) -> None:
    """Read one HTTP/1.1 request, and answer it."""
    with plain.makefile("rb") as stream:
        path = stream.readline().split()[1].decode()
        length = 0
        while (line := stream.readline().strip()) and b":" in line:
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        body = stream.read(length)
    status, content = seen.answers.pop(0) if seen.answers else 200, json.loads(body)
    if len(str(content.get("content", ""))) > seen.limits.get(host, len(body)):
        status = 400
    if status == 200:
        seen.got.append((host, path, content))
    plain.sendall(f"HTTP/1.1 {status} -\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode())
