"""The stack as one object: entered, everything starts; left, for whatever reason, nothing of it is there any more."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self
from uuid import uuid4

from plumbline.errors import ConfigurationError, UnavailableError
from plumbline.localstack import postgres, services
from plumbline.localstack.guard import start_guard
from plumbline.localstack.leftovers import end_leftovers, ensure_pool
from plumbline.localstack.process import MARK, Child, adopt_orphans, end_marked, reap_orphans, start, stop
from plumbline.localstack.signals import undisturbed
from plumbline.schema.suite import Platform, Suite

__all__ = ["Database", "Stack", "is_local"]

Database = Literal["sqlite", "postgresql"]

_READY_SECONDS = 90.0
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 4.0
_RESTARTS = 3
_ROOT = Path(__file__).resolve().parents[2]
_MOST_ON_SQLITE = 15
"""Platforms: on SQLite, Prefect 3.8.8 serves 100 connections at a time, and each platform keeps five open."""


def is_local(suite: Suite) -> bool:
    """Whether the suite is made for the local stack: the name of each of its work pools ends so."""
    return all(platform.work_pool.endswith("-local") for platform in suite.platforms.values())


def _check(suite: Suite, database: Database) -> None:
    pools = [platform.work_pool for platform in suite.platforms.values()]
    if len(set(pools)) != len(pools):
        raise ConfigurationError("two platforms share a work pool", key="work_pool", mend="give each its own")
    if database == "sqlite" and len(pools) > _MOST_ON_SQLITE:
        problem = f"{len(pools)} platforms are too many for a local stack on SQLite: at most {_MOST_ON_SQLITE}"
        raise ConfigurationError(problem, key="platforms", mend="run it with --database postgresql")


class Stack:
    """A Prefect server, the object stores and one pinned worker per platform, on free loopback ports."""

    def __init__(
        self, suite: Suite, state: Path, *, port: int | None = None, database: Database = "sqlite",
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        _check(suite, database)
        self.suite = suite
        self.state = state.resolve()
        self.mark = uuid4().hex
        self._began = datetime.now(UTC)
        self._say = say
        self._port = services.free_port(port)
        self._s3 = f"http://127.0.0.1:{services.free_port()}"
        self._blob = f"http://127.0.0.1:{services.free_port()}"
        self.postgres_port = services.free_port() if database == "postgresql" else None
        self._commands: dict[str, tuple[list[str], Mapping[str, str]]] = {}
        self._servers: dict[str, Child] = {}
        self._workers: dict[str, Child] = {}
        self._restarts: dict[str, int] = {}
        self._controllers: list[Child] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    def ui_url(self) -> str:
        """Where a person looks."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def api_url(self) -> str:
        """Where Prefect's clients talk to."""
        return f"{self.ui_url}/api"

    def __enter__(self) -> Self:
        self._lock = self._claim()
        base = {**services.inherited(), MARK: self.mark}
        adopt_orphans()
        self._guard = start_guard(self.mark, base)
        try:
            self._start_servers(base)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def wait_for_stores(self) -> None:
        """Return when the endpoints answer and every platform's buckets are there."""
        for name, url in (("s3", self._s3), ("blob", self._blob)):
            if name in self._servers:
                self._wait_for(name, url)
        for platform in self.suite.platforms.values():
            for url in (platform.data, platform.outbox):
                services.create_bucket(url, self._s3, self._blob)

    def wait_for_api(self) -> None:
        """Return when the Prefect server answers."""
        self._wait_for("prefect", f"{self.api_url}/health")

    def prepare_pools(self) -> None:
        """End what an earlier stack left unfinished in the database, and make the work pools."""
        end_leftovers(self.api_url, self._began)
        for platform in self.suite.platforms.values():
            ensure_pool(self.api_url, platform.work_pool)

    def start_workers(self, names: Iterable[str] | None = None) -> None:
        """Start one worker for each platform, each on a core of its own as far as there are any."""
        for name in self.suite.platforms if names is None else names:
            self._start_worker(name)

    def start_controller(self, command: list[str], log: str = "controller") -> Child:
        """Start a process that holds the credentials of all platforms; stdin and stdout are pipes to us."""
        child = start(
            log, command, log=self.log(log), environment=self.environment(), folder=Path.cwd(), controlled=True
        )
        self._controllers.append(child)
        return child

    def start_controller_worker(self, pool: str) -> Child:
        """Start a worker that runs controllers: it holds the credentials of all platforms."""
        ensure_pool(self.api_url, pool, limit=None)
        name = f"worker-{pool}"
        command = services.worker_command(pool, f"{pool}-{self.mark[:6]}", limit=4)
        child = start(name, command, log=self.log(name), environment=self.environment(), folder=self.state / name)
        self._controllers.append(child)
        return child

    def environment(self) -> dict[str, str]:
        """The controller's: the stack's Prefect server, and the credentials of every store."""
        urls = [self.suite.store]
        for platform in self.suite.platforms.values():
            urls += [platform.data, platform.outbox]
        clouds = {key: value for url in urls for key, value in self._cloud(url).items()}
        prefect = services.prefect_environment(self.api_url, self.state / "prefect")
        return {**services.inherited(), **prefect, **clouds, MARK: self.mark}

    def store_environment(self, platform: Platform) -> dict[str, str]:
        """The credentials of one platform's own stores."""
        return {**self._cloud(platform.data), **self._cloud(platform.outbox)}

    def check(self) -> None:
        """Replace what died, as systemd would; `UnavailableError` where that does not help."""
        reap_orphans(self._own_pids())
        for name, child in list(self._servers.items()):
            if not child.alive:
                # The object stores hold what was published in memory: without them this round is over.
                self._count(name, child, restarts=_RESTARTS if name == "prefect" else 0)
                self._start_server(name)
        for name, child in list(self._workers.items()):
            if not child.alive:
                self._count(child.name, child, restarts=_RESTARTS)
                self._start_worker(name)

    def _count(self, name: str, child: Child, *, restarts: int) -> None:
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if self._restarts[name] > restarts:
            raise UnavailableError(f"{child.ending}: {child.last_line()}", where=name, mend=f"its log is {child.log}")
        self._say(f"{name} {child.ending}; starting it again")

    def _cloud(self, url: str) -> dict[str, str]:
        return services.cloud_environment(url, self._s3, self._blob)

    def log(self, name: str) -> Path:
        """Where a child's output goes."""
        return self.state / "logs" / f"{name}.log"

    def _claim(self) -> IO[bytes]:
        self.state.mkdir(parents=True, exist_ok=True)
        lock = (self.state / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            mend = "wait for it, or name another folder with --state"
            raise ConfigurationError(
                "another local stack uses this folder", where=str(self.state), mend=mend
            ) from error
        return lock

    def _start_servers(self, base: Mapping[str, str]) -> None:
        for log in (self.state / "logs").glob("*.log"):
            log.unlink()
        prefect = services.prefect_environment(self.api_url, self.state / "prefect")
        commands = self._commands
        if self.postgres_port is not None:
            self._start_postgres(base, self.postgres_port)
            prefect["PREFECT_API_DATABASE_CONNECTION_URL"] = postgres.connection_url(self.postgres_port)
        commands["prefect"] = (services.prefect_server_command(self._port), {**base, **prefect})
        urls = [url for platform in self.suite.platforms.values() for url in (platform.data, platform.outbox)]
        schemes = {url.split(":")[0] for url in (*urls, self.suite.store)}
        if "s3" in schemes:
            commands["s3"] = (services.moto_command(int(self._s3.rsplit(":", 1)[1])), base)
        if "az" in schemes:
            port = int(self._blob.rsplit(":", 1)[1])
            commands["blob"] = (services.azurite_command(port), base)
        for name in commands:
            self._start_server(name)

    def _start_postgres(self, base: Mapping[str, str], port: int) -> None:
        folder = self.state / "postgres"
        postgres.make_database(folder, base)
        command, user = postgres.postgres_command(port, folder), postgres.postgres_user()
        self._servers["postgres"] = start(
            "postgres", command, log=self.log("postgres"), environment=base, folder=Path("/"), user=user
        )
        deadline = time.monotonic() + _READY_SECONDS
        while not services.listens(port):
            self._still_starting("postgres", deadline)

    def _start_server(self, name: str) -> None:
        command, environment = self._commands[name]
        self._servers[name] = start(
            name, command, log=self.log(name), environment=environment, folder=self.state / name
        )

    def _start_worker(self, name: str) -> None:
        platform = self.suite.platforms[name]
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        position = list(self.suite.platforms).index(name)
        extra = self.suite.local[name].environment if name in self.suite.local else {}
        environment = {
            **services.inherited(),
            **services.prefect_environment(self.api_url, self.state / "workers" / name),
            **self.store_environment(platform),
            "OMP_NUM_THREADS": "1",
            "PLUMBLINE_CACHE": str(self.state / "cache" / name),
            "PLUMBLINE_LOCK": str(_ROOT / "locks" / "all.txt"),
            **{key: value.replace("{root}", str(_ROOT)) for key, value in extra.items()},
            MARK: self.mark,
        }
        # Two workers of one name would fight over one row of the server's.
        worker = f"{name}-{self.mark[:6]}-{self._restarts.get(f'worker-{name}', 0)}"
        self._workers[name] = start(
            f"worker-{name}",
            services.worker_command(platform.work_pool, worker),
            log=self.log(f"worker-{name}"),
            environment=environment,
            folder=self.state / "workers" / name,
            core=cores[position % len(cores)] if cores else None,
        )

    def _wait_for(self, name: str, url: str) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not services.answers(url):
            self._still_starting(name, deadline)

    def _still_starting(self, name: str, deadline: float) -> None:
        child = self._servers[name]
        mend = f"its log is {child.log}"
        if not child.alive:
            raise UnavailableError(f"{child.ending}: {child.last_line()}", where=name, mend=mend)
        if time.monotonic() > deadline:
            raise UnavailableError(f"did not answer in {_READY_SECONDS:.0f} s", where=name, mend=mend)
        time.sleep(_POLL_SECONDS)

    def _children(self) -> list[Child]:
        return [*self._controllers, *self._workers.values(), *self._servers.values()]

    def _own_pids(self) -> list[int]:
        guard = [self._guard.pid] if self._guard is not None else []
        return [*guard, *(child.process.pid for child in self._children())]

    def _end(self) -> None:
        """End everything, first those who talk, then those who answer. A second Ctrl-C does not cut this short."""
        with undisturbed():
            stop([*self._controllers, *self._workers.values()], grace_seconds=_GRACE_SECONDS)
            left = end_marked(self.mark, grace_seconds=_GRACE_SECONDS, reap=self._reap)
            for child in self._children():
                # A process loses its environment a moment before it can be collected.
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(_GRACE_SECONDS)
            self._reap()
            if self._guard is not None and self._guard.stdin is not None:
                with suppress(OSError):
                    self._guard.stdin.close()
                self._guard.wait()
            if self._lock is not None:
                self._lock.close()
        if left:
            print(f"plumbline: processes {left} could not be ended", file=sys.stderr)  # noqa: T201 - nothing else is left

    def _reap(self) -> None:
        reap_orphans(self._own_pids())
        for child in self._children():
            child.process.poll()
            for pipe in (child.process.stdin, child.process.stdout):
                if pipe is not None and not child.alive:
                    with suppress(OSError):
                        pipe.close()
