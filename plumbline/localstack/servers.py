"""The local stack's servers: Prefect's, the object stores', and PostgreSQL's where it is asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from plumbline.errors import ConfigurationError, UnavailableError
from plumbline.localstack import postgres, services
from plumbline.localstack.process import Child, start
from plumbline.schema.suite import Suite

__all__ = ["Database", "Servers"]

Database = Literal["sqlite", "postgresql"]

_READY_SECONDS = 90.0
_POLL_SECONDS = 0.1
_MOST_ON_SQLITE = 15
"""Platforms: on SQLite, Prefect 3.8.8 serves 100 connections at a time, and each platform keeps five open."""


class Servers:
    """Their ports on the loopback device, which are free, their commands and their processes."""

    def __init__(self, suite: Suite, state: Path, port: int | None, database: Database) -> None:
        if database == "sqlite" and len(suite.platforms) > _MOST_ON_SQLITE:
            problem = f"a local stack on SQLite serves at most {_MOST_ON_SQLITE} platforms, not {len(suite.platforms)}"
            raise ConfigurationError(problem, key="platforms", mend="run it with --database postgresql")
        self._suite = suite
        self._state = state
        self._port = services.free_port(port)
        self._s3 = f"http://127.0.0.1:{services.free_port()}"
        self._blob = f"http://127.0.0.1:{services.free_port()}"
        self.postgres_port = services.free_port() if database == "postgresql" else None
        self._commands: dict[str, tuple[list[str], Mapping[str, str]]] = {}
        self.children: dict[str, Child] = {}

    @property
    def ui_url(self) -> str:
        """Where a person looks."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def api_url(self) -> str:
        """Where Prefect's clients talk to."""
        return f"{self.ui_url}/api"

    def log(self, name: str) -> Path:
        """Where a child's output goes."""
        return self._state / "logs" / f"{name}.log"

    def credentials(self, *urls: str) -> dict[str, str]:
        """The variables that open the stores of these addresses."""
        return {
            key: value for url in urls for key, value in services.cloud_environment(url, self._s3, self._blob).items()
        }

    def start(self, base: Mapping[str, str]) -> None:
        """Start all that the suite needs; they come up side by side."""
        for log in (self._state / "logs").glob("*.log"):
            log.unlink()
        prefect = services.prefect_environment(self.api_url, self._state / "prefect")
        if self.postgres_port is not None:
            self._start_postgres(base, self.postgres_port)
            prefect["PREFECT_API_DATABASE_CONNECTION_URL"] = postgres.connection_url(self.postgres_port)
        self._commands["prefect"] = (services.prefect_server_command(self._port), {**base, **prefect})
        urls = [url for platform in self._suite.platforms.values() for url in (platform.data, platform.outbox)]
        schemes = {url.split(":")[0] for url in (*urls, self._suite.store)}
        if "s3" in schemes:
            self._commands["s3"] = (services.moto_command(int(self._s3.rsplit(":", 1)[1])), base)
        if "az" in schemes:
            self._commands["blob"] = (services.azurite_command(int(self._blob.rsplit(":", 1)[1])), base)
        for name in self._commands:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Start a server, or start it again."""
        command, environment = self._commands[name]
        self.children[name] = start(
            name, command, log=self.log(name), environment=environment, folder=self._state / name
        )

    def wait_for_stores(self) -> None:
        """Return when the endpoints answer and every platform's buckets are there."""
        for name, url in (("s3", self._s3), ("blob", self._blob)):
            if name in self.children:
                self._wait_for(name, url)
        for platform in self._suite.platforms.values():
            for url in (platform.data, platform.outbox):
                services.create_bucket(url, self._s3, self._blob)

    def wait_for_api(self) -> None:
        """Return when the Prefect server answers."""
        self._wait_for("prefect", f"{self.api_url}/health")

    def _start_postgres(self, base: Mapping[str, str], port: int) -> None:
        folder = self._state / "postgres"
        postgres.make_database(folder, base)
        command, user = postgres.postgres_command(port, folder), postgres.postgres_user()
        self.children["postgres"] = start(
            "postgres", command, log=self.log("postgres"), environment=base, folder=Path("/"), user=user
        )
        deadline = time.monotonic() + _READY_SECONDS
        while not services.listens(port):
            self._still_starting("postgres", deadline)

    def _wait_for(self, name: str, url: str) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not services.answers(url):
            self._still_starting(name, deadline)

    def _still_starting(self, name: str, deadline: float) -> None:
        child = self.children[name]
        mend = f"its log is {child.log}"
        if not child.alive:
            raise UnavailableError(f"{child.ending}: {child.last_line()}", where=name, mend=mend)
        if time.monotonic() > deadline:
            raise UnavailableError(f"did not answer in {_READY_SECONDS:.0f} s", where=name, mend=mend)
        time.sleep(_POLL_SECONDS)
