"""Servers of the local stack: Prefect, and the suite's object stores."""

from __future__ import annotations

import atexit
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from plumbline.local import services
from plumbline.local.database import Database
from plumbline.local.process import Child, start
from plumbline.local.services import StackSecrets, read_login
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.schema.suite import Suite

_READY_SECONDS = 120.0
_POLL_SECONDS = 0.1

_HOST = "127.0.0.1"
_reserved = ExitStack()
"""Sockets that this process holds to its end."""

atexit.register(_reserved.close)


def reserve_port(wanted: int | None = None) -> int:
    """Reserve a free localhost port for child processes; raise if already used.

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


class Servers:
    """Ports, commands and processes of the local servers."""

    def __init__(self, suite: Suite, state: Path, port: int | None, folder: Path) -> None:
        self._suite = suite
        self._state = state
        self._port = reserve_port(port)
        self._stores: services.Endpoints | None = None
        self.database = Database(folder / "database", reserve_port())
        self._commands: dict[str, tuple[list[str], Mapping[str, str]]] = {}
        self.children: dict[str, Child] = {}

    @property
    def ui_url(self) -> str:
        """Return the URL of Prefect's UI."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def api_url(self) -> str:
        """Return the URL of Prefect's API."""
        return f"{self.ui_url}/api"

    @property
    def login(self) -> str:
        """Return the Prefect server's login, formatted for PREFECT_API_AUTH_STRING."""
        return self._endpoints.secrets.login

    @property
    def _endpoints(self) -> services.Endpoints:
        """Return the object stores' endpoints and secrets, created on first use."""
        if self._stores is None:
            s3, blob = (f"http://127.0.0.1:{reserve_port()}" for _ in range(2))
            self._stores = services.Endpoints(s3, blob, StackSecrets(read_login(self._state)))
        return self._stores

    def log(self, name: str) -> Path:
        """Return the log file of a child process."""
        return self._state / "logs" / f"{name}.log"

    def credentials(self, *urls: str) -> dict[str, str]:
        """Return environment variables with credentials for these store URLs."""
        return {key: value for url in urls for key, value in services.cloud_environment(url, self._endpoints).items()}

    def start(self, base: Mapping[str, str]) -> None:
        """Start all required servers: the database first, others in parallel.

        Azurite, if it has to be installed, is installed before.
        """
        for log in (self._state / "logs").glob("*.log"):
            log.unlink()
        urls = [url for platform in self._suite.platforms.values() for url in (platform.data, platform.outbox)]
        schemes = {url.split(":")[0] for url in (*urls, self._suite.store)}
        stores = {**base, **services.store_secrets(self._endpoints.secrets)}
        if "s3" in schemes:
            self._commands["s3"] = (services.moto_command(_port(self._endpoints.s3)), stores)
        if "az" in schemes:
            self._commands["blob"] = (services.azurite_command(_port(self._endpoints.blob)), stores)
        prefect = services.prefect_environment(self.api_url, self._state / "prefect", self.login)
        self.database.prepare({**base, **prefect})
        self.start_one("database")
        prefect["PREFECT_API_DATABASE_CONNECTION_URL"] = self.database.url
        prefect["PREFECT_SERVER_API_AUTH_STRING"] = self.login
        self._commands["prefect"] = (services.prefect_server_command(self._port), {**base, **prefect})
        for name in self._commands:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Start or restart a server."""
        if name == "database":
            self.children[name] = self.database.start(self.log(name))
            return
        command, environment = self._commands[name]
        self.children[name] = start(
            name, command, log=self.log(name), environment=environment, folder=self._state / name
        )

    def wait_for_stores(self) -> None:
        """Wait until the store servers respond and all buckets exist."""
        for name, url in (("s3", self._endpoints.s3), ("blob", self._endpoints.blob)):
            if name in self.children:
                self._wait_for(name, url)
        for platform in self._suite.platforms.values():
            for url in (platform.data, platform.outbox):
                services.create_bucket(url, self._endpoints)

    def wait_for_api(self) -> None:
        """Wait until the Prefect server responds."""
        self._wait_for("prefect", f"{self.api_url}/health")

    def _wait_for(self, name: str, url: str) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not services.answers(url):
            child = self.children[name]
            hint = f"see {child.log}"
            if not child.alive:
                raise UnavailableError(f"{child.ending}: {child.last_lines()}", where=name, hint=hint)
            if time.monotonic() > deadline:
                raise UnavailableError(f"did not answer within {_READY_SECONDS:.0f} s", where=name, hint=hint)
            time.sleep(_POLL_SECONDS)


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
