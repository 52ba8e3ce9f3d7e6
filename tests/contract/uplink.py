"""Slow uplink: a byte proxy in front of a server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self
from urllib.parse import urlsplit

_PIECE = 64 << 10


class SlowUplink:
    """Proxy that limits the upload rate, in bytes per second."""

    def __init__(self, url: str, *, bytes_per_second: int) -> None:
        parts = urlsplit(url)
        self._target = (str(parts.hostname), int(parts.port or 80))
        self._path = parts.path
        self._pause = _PIECE / bytes_per_second
        self._listening = socket.create_server(("127.0.0.1", 0))
        # What the kernel would take in at once is not sent yet.
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}{self._path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sender, _ = self._listening.accept()
                threading.Thread(target=self._relay, args=(sender,), daemon=True).start()

    def _relay(self, sender: socket.socket) -> None:
        with sender, socket.create_connection(self._target) as server:
            back = threading.Thread(target=_pass, args=(server, sender, 0.0), daemon=True)
            back.start()
            _pass(sender, server, self._pause)
            back.join()


def _pass(source: socket.socket, sink: socket.socket, pause: float) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            time.sleep(pause * len(piece) / _PIECE)
            sink.sendall(piece)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
