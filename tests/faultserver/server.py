"""HTTP server of objects, with one planned fault after the next.

S3's SDK asks for `/bucket/key`, Azure's for `/account/container/key`; both send GET and HEAD with `Range` (or
`x-ms-range`) and `If-Match`, and need little more in return than `ETag`, `Content-Length` and `Content-Range`.
Google's JSON API (`/storage/v1/b/bucket/o/key`) is served as `/bucket/key` too, with a generation for an etag.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self
from urllib.parse import unquote

from tests.faultserver.faults import (
    Change,
    Corrupt,
    Denied,
    Fault,
    FullAnswer,
    Missing,
    RedirectLoop,
    Reset,
    Stall,
    Status,
    Trickle,
    Truncate,
    WrongLength,
)
from tests.http_server import Handler, Server

_PIECE = 64 << 10


@dataclass
class Served:
    """One answered request; `end` is the requested end of the range.

    Noted before the answer goes out, and `sent` before each piece: who has read the last byte finds it counted here.
    """

    method: str
    path: str
    offset: int
    end: int | None
    sent: int = 0


class FaultServer:
    """Objects by path; each GET of a `faulty` path uses one of `faults` (`None`: no fault)."""

    def __init__(self, *, rate: float | None = None, latency: float = 0.0) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: deque[Fault | None] = deque()
        self.faulty = re.compile("")
        self.served: list[Served] = []
        self.asked: list[tuple[str, str, int]] = []
        """Agent, path and offset of each GET, noted as it comes."""
        self.connections = 0
        """Connections accepted so far."""
        self.etag = lru_cache(maxsize=512)(lambda body: f'"{hashlib.md5(body).hexdigest()}"')  # noqa: S324
        self.rate = rate
        """Bytes per second of one connection."""
        self.latency = latency
        """Seconds before the first byte of each GET."""
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self._http = _Server(_Handler)
        self._http.owner, self.url = self, self._http.url

    def __enter__(self) -> Self:
        self._http.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.stop()

    def body_bytes(self, pattern: str = "") -> int:
        """Return the body bytes sent so far for matching paths."""
        with self.lock:
            return sum(entry.sent for entry in self.served if re.search(pattern, entry.path))

    def next_fault(self, path: str) -> Fault | None:
        """Return the fault planned for this answer."""
        with self.lock:
            return self.faults.popleft() if self.faults and self.faulty.search(path) else None


class _Server(Server):
    request_queue_size = 128
    owner: FaultServer

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a new connection in its own thread."""
        self.owner.connections += 1
        super().process_request(request, client_address)


class _Handler(Handler):
    disable_nagle_algorithm = True
    server: _Server
    timeout = 30

    def answer(self) -> None:
        if self.command == "GET":
            return self._get()
        body = self.server.owner.objects.get(self._path())
        if body is None:
            return self._refuse(404, "NoSuchKey")
        self.send_response(200)
        self._describe(body, len(body))
        return self.end_headers()

    def _path(self) -> str:
        path = self.path.partition("?")[0]
        google = re.fullmatch("/storage/v1/b/([^/]+)/o/([^/]+)", path)
        return f"/{google[1]}/{unquote(google[2])}" if google else path

    def _generation(self, body: bytes) -> str:
        return str(int(self.server.owner.etag(body).strip('"')[:12], 16))

    def _describe(self, body: bytes, length: int) -> None:
        self.send_header("ETag", self.server.owner.etag(body))
        self.send_header("Content-Length", str(length))
        self.send_header("Last-Modified", "Fri, 20 Nov 2026 12:00:00 GMT")
        self.send_header("x-ms-blob-type", "BlockBlob")
        self.send_header("x-goog-generation", self._generation(body))
        self.send_header("Content-Type", "application/octet-stream")

    def _refuse(self, status: int, code: str, **headers: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.reply(status, body, {"Content-Type": "application/xml", "x-ms-error-code": code, **given})

    def _get(self) -> None:
        owner, path = self.server.owner, self._path()
        if owner.latency:
            time.sleep(owner.latency)
        fault = owner.next_fault(path)
        body = owner.objects.get(path)
        match fault:
            case Status(code, wait):
                return self._refuse(code, "SlowDown", **({"Retry_After": wait} if wait else {}))
            case Denied():
                return self._refuse(403, "ExpiredToken")
            case RedirectLoop():
                return self._refuse(307, "TemporaryRedirect", Location=owner.url + self.path)
            case Change() if body is not None:
                body = owner.objects[path] = bytes(reversed(body))
        if body is None or isinstance(fault, Missing):
            return self._refuse(404, "NoSuchKey")
        if self.path.startswith("/storage/v1/") and "alt=media" not in self.path:
            output = json.dumps({"size": str(len(body)), "generation": self._generation(body)}).encode()
            return self.reply(200, output)
        return self._answer(path, body, fault)

    def _answer(self, path: str, body: bytes, fault: Fault | None) -> None:
        asked = self.headers.get("x-ms-range") or self.headers.get("Range") or "bytes=0-"
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", asked).groups()  # type: ignore[union-attr]
        offset, end = int(first), int(last) + 1 if last else None
        owner = self.server.owner
        with owner.lock:
            owner.asked.append((self.headers.get("User-Agent", ""), path, offset))
        wanted = self.headers.get("If-Match")
        generation = re.search(r"ifGenerationMatch=(\d+)", self.path)
        if (wanted is not None and wanted != owner.etag(body)) or (
            generation and generation[1] != self._generation(body)
        ):
            return self._refuse(412, "PreconditionFailed")
        partial = (offset > 0 or end is not None) and not isinstance(fault, FullAnswer)
        if partial and offset >= len(body):
            return self._refuse(416, "InvalidRange")
        rest = body[offset:end] if partial else body
        output = len(rest) + (fault.by if isinstance(fault, WrongLength) else 0)
        self.send_response(206 if partial else 200)
        self._describe(body, output)
        if partial:
            total = len(body) + output - len(rest)
            self.send_header("Content-Range", f"bytes {offset}-{offset + output - 1}/{total}")
        served = Served("GET", path, offset, end)
        with owner.lock:
            owner.served.append(served)
        self.end_headers()
        self._served = served
        self._send(rest[:output], fault)
        if isinstance(fault, WrongLength):
            self.close_connection = True
        return None

    def _send(self, rest: bytes, fault: Fault | None) -> None:
        match fault:
            case Corrupt(at) if rest:
                spoiled = bytearray(rest)
                spoiled[at % len(rest)] ^= 1
                self._stream(bytes(spoiled))
            case Trickle(size, seconds):
                self._trickle(rest, size, seconds)
            case Reset(after) | Truncate(after) | Stall(after):
                self._stream(rest[:after])
                self._break(fault)
            case _:
                self._stream(rest)

    def _write(self, piece: bytes) -> None:
        with self.server.owner.lock:
            self._served.sent += len(piece)
        self.wfile.write(piece)

    def _stream(self, data: bytes) -> None:
        rate, begin = self.server.owner.rate, time.monotonic()
        for start in range(0, len(data), _PIECE):
            self._write(data[start : start + _PIECE])
            if rate is not None:
                late = begin + (start + _PIECE) / rate - time.monotonic()
                self.server.owner.stopping.wait(max(0.0, late))

    def _trickle(self, rest: bytes, size: int, seconds: float) -> None:
        for start in range(0, len(rest), size):
            if self.server.owner.stopping.wait(seconds):
                return
            self._write(rest[start : start + size])

    def _break(self, fault: Reset | Truncate | Stall) -> None:
        self.wfile.flush()
        self.close_connection = True
        if isinstance(fault, Stall):
            # Until the client hangs up: then its end of the connection becomes readable.
            self.connection.settimeout(0.05)
            while not self.server.owner.stopping.is_set():
                try:
                    if not self.connection.recv(1):
                        return
                except TimeoutError:
                    continue
                except OSError:
                    return
        elif isinstance(fault, Reset):
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
