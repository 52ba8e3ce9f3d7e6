"""Local stack as a context manager: start everything, leave no process behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from uuid import uuid4

from plumbline.data.file_lock import try_lock
from plumbline.environments.processes import adopt_orphans
from plumbline.environments.python_modules import module_command
from plumbline.local import services
from plumbline.local.guard import start_guard
from plumbline.local.process import MARK, Child, end_marked, reap_orphans, start, stop
from plumbline.local.servers import Servers
from plumbline.local.signals import undisturbed
from plumbline.night.doctor.place import cuda_of_torch
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.schema.extras import resource
from plumbline.schema.suite import Platform, Suite

CONTROLLERS = "plumbline"
"""Work pool and worker of the controllers, the default of `plumbline deploy`."""

_GRACE_SECONDS = 4.0
_RESTARTS = 3
_ROOT = Path(__file__).resolve().parents[2]


def lock_in_use() -> Path:
    """Return this environment's lock file, for CPU or GPU torch."""
    return resource("locks/trainer-cuda.txt" if cuda_of_torch() else "locks/all.txt")


def is_local(suite: Suite) -> bool:
    """Return whether all the suite's work pools end in `-local`."""
    return all(platform.work_pool.endswith("-local") for platform in suite.platforms.values())


class Stack:
    """Local Prefect server, object stores, and one Prefect worker per platform."""

    def __init__(self, suite: Suite, state: Path, *, port: int | None = None, say: Callable[[str], None]) -> None:
        pools = [platform.work_pool for platform in suite.platforms.values()]
        if len(set(pools)) != len(pools):
            raise ConfigurationError("two platforms share a work pool", key="work_pool", hint="give each its own")
        self.suite = suite
        self.state = state.resolve()
        self.mark = uuid4().hex
        self._say = say
        self._folder = Path(tempfile.gettempdir()) / f"plumbline-{self.mark}"
        self.servers = Servers(suite, self.state, port, self._folder)
        self._workers: dict[str, Child] = {}
        self._restarts: dict[str, int] = {}
        self._commands: list[Child] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock: IO[bytes] | None = None

    @property
    def ui_url(self) -> str:
        """Return the URL of Prefect's UI."""
        return self.servers.ui_url

    @property
    def api_url(self) -> str:
        """Return the URL of Prefect's API."""
        return self.servers.api_url

    @property
    def login(self) -> str:
        """Return the Prefect server's login as NAME:PASSWORD."""
        return self.servers.login

    def __enter__(self) -> Self:
        self._lock = self._claim()
        adopt_orphans()
        self._guard = start_guard(self.mark, self._folder, services.inherited())
        try:
            self._make_folder()
            self.servers.start(self._base)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def wait_until_ready(self) -> None:
        """Wait until the stores and the Prefect server respond."""
        self.servers.wait_for_stores()
        self.servers.wait_for_api()

    def start_workers(self, names: Iterable[str] | None = None) -> None:
        """Start workers for platforms and controllers; their work pools must exist."""
        for name in (*self.suite.platforms, CONTROLLERS) if names is None else names:
            self._start_worker(name)

    def start_command(self, name: str, options: Sequence[str], log: str = "") -> Child:
        """Start `plumbline NAME OPTIONS` with the stack's environment."""
        child = start(
            name, [*module_command(sys.executable, "plumbline"), name, *options],
            log=self.servers.log(log) if log else None, environment=self.environment(), folder=Path.cwd(),
        )  # fmt: skip
        self._commands.append(child)
        return child

    def environment(self) -> dict[str, str]:
        """Return the controller's environment: Prefect server address and store credentials."""
        urls = [url for platform in self.suite.platforms.values() for url in (platform.data, platform.outbox)]
        prefect = services.prefect_environment(self.api_url, self.state / "prefect", self.login)
        stores = self.servers.credentials(self.suite.store, *urls)
        return {**self._base, **prefect, **stores}

    def store_environment(self, platform: Platform) -> dict[str, str]:
        """Return the store credentials of one platform."""
        return self.servers.credentials(platform.data, platform.outbox)

    def check(self) -> None:
        """Restart dead processes, like systemd; raise `UnavailableError` after too many restarts."""
        reap_orphans(self._own_pids())
        for name, child in list(self.servers.children.items()):
            if not child.alive:
                # The object stores keep published data in memory: without them this round has failed.
                self._count(name, child, restarts=_RESTARTS if name in {"prefect", "database"} else 0)
                self.servers.start_one(name)
        for name, child in list(self._workers.items()):
            if not child.alive:
                self._count(child.name, child, restarts=_RESTARTS)
                self._start_worker(name)

    def _count(self, name: str, child: Child, *, restarts: int) -> None:
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if self._restarts[name] > restarts:
            raise UnavailableError(f"{child.ending}: {child.last_lines()}", where=name, hint=f"its log is {child.log}")
        self._say(f"{name} {child.ending}: {child.last_lines()}; starting it again")

    @property
    def _base(self) -> dict[str, str]:
        """Return the environment shared by all processes of the stack.

        Prefect's workers share a folder in the temporary folder, which belongs to the first user of the machine.
        """
        return {**services.inherited(), MARK: self.mark, "TMPDIR": str(self._folder / "temporary")}

    def _make_folder(self) -> None:
        """Create the stack's folder, accessible to PostgreSQL's user where that is needed."""
        self._folder.mkdir(mode=0o700)
        (self._folder / "temporary").mkdir(mode=0o700)
        self._folder.chmod(0o711)

    def _claim(self) -> IO[bytes]:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        # It may exist: `plumbline init` keeps its schema there.
        try:
            self.state.chmod(0o700)
        except PermissionError as error:
            hint = "name a folder of your own with --state"
            raise ConfigurationError("belongs to a different user", where=str(self.state), hint=hint) from error
        lock = (self.state / "lock").open("ab")
        if not try_lock(lock):
            lock.close()
            hint = "wait for it, or name a different folder with --state"
            raise ConfigurationError("a different local stack uses this folder", where=str(self.state), hint=hint)
        return lock

    def _start_worker(self, name: str) -> None:
        is_controllers = name == CONTROLLERS
        pool = CONTROLLERS if is_controllers else self.suite.platforms[name].work_pool
        environment = {
            **(self.environment() if is_controllers else self._base),
            **services.prefect_environment(self.api_url, self.state / "workers" / name, self.login),
            "PLUMBLINE_LOCK": str(lock_in_use()),
            # Last, as a suite may set the worker's polling period.
            **({} if is_controllers else self._platform_environment(name)),
            MARK: self.mark,
        }
        # Unique, as workers of the same name would share a row on the server.
        worker = f"{name}-{self.mark[:6]}-{self._restarts.get(f'worker-{name}', 0)}"
        self._workers[name] = start(
            f"worker-{name}",
            services.worker_command(
                pool, worker, limit=None if is_controllers else self.suite.platforms[name].concurrency
            ),
            log=self.servers.log(f"worker-{name}"),
            environment=environment,
            folder=self.state / "workers" / name,
            core=None if is_controllers else self._core(name),
        )

    def _platform_environment(self, name: str) -> dict[str, str]:
        """Return the environment of one platform's worker: stores, cache, one thread."""
        extra = self.suite.local[name].environment if name in self.suite.local else {}
        return {
            **self.store_environment(self.suite.platforms[name]),
            "OMP_NUM_THREADS": "1",
            "PLUMBLINE_CACHE": str(self.state / "cache" / name),
            **{key: value.replace("{root}", str(_ROOT)) for key, value in extra.items()},
        }

    def _core(self, name: str) -> int | None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return cores[list(self.suite.platforms).index(name) % len(cores)] if cores else None

    def _children(self) -> list[Child]:
        return [*self._commands, *self._workers.values(), *self.servers.children.values()]

    def _own_pids(self) -> list[int]:
        guard = [self._guard.pid] if self._guard is not None else []
        return [*guard, *(child.process.pid for child in self._children())]

    def _end(self) -> None:
        """End all processes, clients before servers, ignoring further Ctrl-C."""
        with undisturbed():
            stop([*self._commands, *self._workers.values()], grace_seconds=_GRACE_SECONDS)
            # The database waits for its clients to leave.
            stop(
                [child for child in self.servers.children.values() if child.name == "prefect"],
                grace_seconds=_GRACE_SECONDS,
            )
            left = end_marked(self.mark, grace_seconds=_GRACE_SECONDS, reap=self._reap)
            for child in self._children():
                # A process loses its environment shortly before it can be reaped.
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(_GRACE_SECONDS)
            self._reap()
            if self._guard is not None and self._guard.stdin is not None:
                with suppress(OSError):
                    self._guard.stdin.close()
                self._guard.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._lock is not None:
                self._lock.close()
        if left:
            print(f"plumbline: processes {left} could not be ended", file=sys.stderr)  # noqa: T201 - nothing else is left

    def _reap(self) -> None:
        reap_orphans(self._own_pids())
        for child in self._children():
            child.process.poll()
