"""Local receivers of alerts: a webhook, and a proxy that simulates internet hosts."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


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

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked += 1
                time.sleep(outer.answer_seconds)
                status = outer.answers.pop(0) if outer.answers else 200
                if status == 200:
                    outer.times.append(datetime.now(UTC))
                    outer.got.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Start a webhook on a free port."""
    item = Receiver()
    try:
        yield item
    finally:
        item.server.shutdown()
        item.server.server_close()


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
    certificate, seen = _certificate(folder, hosts), Internet()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)

    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_response(200, "Connection established")
            self.end_headers()
            with suppress(OSError), tls.wrap_socket(self.connection, server_side=True) as plain:
                _answer(plain, self.path.partition(":")[0], seen)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    seen.variables = {
        "HTTPS_PROXY": f"http://127.0.0.1:{server.server_address[1]}",
        "NO_PROXY": "127.0.0.1,localhost",
        "REQUESTS_CA_BUNDLE": str(certificate),
        "SSL_CERT_FILE": str(certificate),
    }
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()


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


def _certificate(folder: Path, hosts: tuple[str, ...]) -> Path:
    """Write a self-signed key and certificate for these hosts."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "plumbline test")])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "internet.pem"
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, form, plain) + built.public_bytes(pem))
    return path
