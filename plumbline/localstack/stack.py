"""The stack as one object: entered, everything starts; left, for whatever reason, nothing of it is there any more."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from uuid import uuid4

from plumbline.errors import ConfigurationError, UnavailableError
from plumbline.localstack import services
from plumbline.localstack.guard import start_guard
from plumbline.localstack.leftovers import end_leftovers
from plumbline.localstack.pools import ensure_pool
from plumbline.localstack.process import MARK, Child, adopt_orphans, end_marked, reap_orphans, start, stop
from plumbline.localstack.servers import Database, Servers
from plumbline.localstack.signals import undisturbed
from plumbline.schema.suite import Platform, Suite

__all__ = ["Stack", "is_local"]

_GRACE_SECONDS = 4.0
_RESTARTS = 3
_ROOT = Path(__file__).resolve().parents[2]


def is_local(suite: Suite) -> bool:
    """Whether the suite is made for the local stack: the name of each of its work pools ends so."""
    return all(platform.work_pool.endswith("-local") for platform in suite.platforms.values())


class Stack:
    """A Prefect server, the object stores and one pinned worker per platform, on free loopback ports."""

    def __init__(
        self, suite: Suite, state: Path, *, port: int | None = None, database: Database = "sqlite",
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        pools = [platform.work_pool for platform in suite.platforms.values()]
        if len(set(pools)) != len(pools):
            raise ConfigurationError("two platforms share a work pool", key="work_pool", mend="give each its own")
        self.suite = suite
        self.state = state.resolve()
        self.mark = uuid4().hex
        self._began = datetime.now(UTC)
        self._say = say
        self.servers = Servers(suite, self.state, port, database)
        self._workers: dict[str, Child] = {}
        self._restarts: dict[str, int] = {}
        self._controllers: list[Child] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    def ui_url(self) -> str:
        """Where a person looks."""
        return self.servers.ui_url

    @property
    def api_url(self) -> str:
        """Where Prefect's clients talk to."""
        return self.servers.api_url

    def __enter__(self) -> Self:
        self._lock = self._claim()
        base = {**services.inherited(), MARK: self.mark}
        adopt_orphans()
        self._guard = start_guard(self.mark, base)
        try:
            self.servers.start(base)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

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
            log, command, log=self.servers.log(log), environment=self.environment(), folder=Path.cwd(), controlled=True
        )
        self._controllers.append(child)
        return child

    def start_controller_worker(self, pool: str) -> Child:
        """Start a worker that runs controllers: it holds the credentials of all platforms."""
        ensure_pool(self.api_url, pool, limit=None)
        name = f"worker-{pool}"
        command = services.worker_command(pool, f"{pool}-{self.mark[:6]}", limit=4)
        child = start(
            name, command, log=self.servers.log(name), environment=self.environment(), folder=self.state / name
        )
        self._controllers.append(child)
        return child

    def environment(self) -> dict[str, str]:
        """The controller's: the stack's Prefect server, and the credentials of every store."""
        urls = [url for platform in self.suite.platforms.values() for url in (platform.data, platform.outbox)]
        prefect = services.prefect_environment(self.api_url, self.state / "prefect")
        stores = self.servers.credentials(self.suite.store, *urls)
        return {**services.inherited(), **prefect, **stores, MARK: self.mark}

    def store_environment(self, platform: Platform) -> dict[str, str]:
        """The credentials of one platform's own stores."""
        return self.servers.credentials(platform.data, platform.outbox)

    def check(self) -> None:
        """Replace what died, as systemd would; `UnavailableError` where that does not help."""
        reap_orphans(self._own_pids())
        for name, child in list(self.servers.children.items()):
            if not child.alive:
                # The object stores hold what was published in memory: without them this round is over.
                self._count(name, child, restarts=_RESTARTS if name == "prefect" else 0)
                self.servers.start_one(name)
        for name, child in list(self._workers.items()):
            if not child.alive:
                self._count(child.name, child, restarts=_RESTARTS)
                self._start_worker(name)

    def _count(self, name: str, child: Child, *, restarts: int) -> None:
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if self._restarts[name] > restarts:
            raise UnavailableError(f"{child.ending}: {child.last_line()}", where=name, mend=f"its log is {child.log}")
        self._say(f"{name} {child.ending}; starting it again")

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
            log=self.servers.log(f"worker-{name}"),
            environment=environment,
            folder=self.state / "workers" / name,
            core=cores[position % len(cores)] if cores else None,
        )

    def _children(self) -> list[Child]:
        return [*self._controllers, *self._workers.values(), *self.servers.children.values()]

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
