"""Loopback ports that stay reserved until their server listens, and while it restarts."""

from __future__ import annotations

import atexit
import socket
import sys
from contextlib import ExitStack

from plumbline.errors import ConfigurationError

_HOST = "127.0.0.1"
_reserved = ExitStack()
"""Sockets that this process holds to its end."""
atexit.register(_reserved.close)


def reserve_port(wanted: int | None = None) -> int:
    """Return a free loopback port, reserved for this process's children; raise if the wanted port is in use.

    A port that is only looked up may belong to an outgoing connection seconds later, when the server wants it. A bound
    socket that does not listen keeps it: Linux gives the port to no connection and to no request for any free port, yet
    lets a server listen on it that sets SO_REUSEADDR, as all servers of the stack do. Other systems refuse that server.
    """
    probe = socket.socket()
    try:
        if wanted:
            # A server that ended a moment ago leaves closing connections, which do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((_HOST, wanted or 0))
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = int(probe.getsockname()[1])
    except OSError as error:
        probe.close()
        raise ConfigurationError(
            f"port {wanted} is in use", where=_HOST, hint="omit --port, or stop the process that listens on it"
        ) from error
    if sys.platform == "linux":
        _reserved.enter_context(probe)
    else:
        probe.close()
    return port
