"""Clients of a suite's Prefect APIs: the controller's, and platforms' own ones.

A platform with an `api` of its own has its pool, its deployments and its runs there. Its workers hold no key of the
controller's API, on which rounds, blocks and secrets are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_CLIENT_CUSTOM_HEADERS, temporary_settings

from plumbline.schema.errors import PlumblineError
from plumbline.schema.suite import Suite
from plumbline.schema.suite_file import api_key_variable
from plumbline.schema.variables import variable
from plumbline.tasks.prefect_client.api import (
    PREFECT_ERRORS,
    NotPrefectError,
    client_settings,
    open_client,
    server_clock,
    server_errors,
)

ANSWER_SECONDS = 15.0
"""Time for a platform's API to answer; the client alone tries for seven minutes, which would hold up every platform."""
T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start work that may never return, in a thread that ends with the process."""
    result, context = Future[T](), copy_context()

    def run() -> None:
        try:
            result.set_result(context.run(work))
        except Exception as error:  # noqa: BLE001 - raised by `result`, where the caller handles it
            result.set_exception(error)

    Thread(target=run, daemon=True).start()
    return result


class PlatformApis:
    """Prefect API clients by platform."""

    def __init__(self, own: SyncPrefectClient, others: Mapping[str, SyncPrefectClient]) -> None:
        self.own = own
        self._others = others
        self._asked: dict[int, Future[Any]] = {}

    def ask(
        self, client: SyncPrefectClient, request: Callable[[SyncPrefectClient], T], seconds: float | None = None
    ) -> T:
        """Send a request to a platform's API. Raise `TimeoutError` if the API does not answer in time.

        That API is not asked again before it has answered or failed. A platform's API decides what it answers: an
        error that Prefect's client does not declare is a `NotPrefectError`.
        """
        if client is self.own:
            return request(client)
        if (before := self._asked.get(id(client))) is not None and not before.done():
            raise TimeoutError("no answer to an earlier request")

        def answered() -> T:
            try:
                return request(client)
            except (*PREFECT_ERRORS, PrefectException, PlumblineError):
                raise
            except Exception as error:  # of values that no Prefect server answers
                raise NotPrefectError(type(error).__name__) from error

        self._asked[id(client)] = answer = in_background(answered)
        return answer.result(ANSWER_SECONDS if seconds is None else seconds)

    def of(self, platform: str) -> SyncPrefectClient:
        """Return a platform's API client, by default the controller's."""
        return self._others.get(platform, self.own)

    def is_own(self, platform: str) -> bool:
        """Return whether a platform uses the controller's own API."""
        return platform not in self._others

    def foreign(self, suite: Suite) -> list[tuple[str, str, SyncPrefectClient]]:
        """Return each separate API's address, with its first platform and client."""
        first: dict[str, str] = {}
        for name in self._others:
            first.setdefault(suite.platforms[name].api, name)
        return [(api, name, self._others[name]) for api, name in first.items()]

    def groups(self, platforms: Iterable[str]) -> list[tuple[SyncPrefectClient, list[str]]]:
        """Return the clients with their platforms, in order."""
        grouped: dict[int, tuple[SyncPrefectClient, list[str]]] = {}
        for platform in platforms:
            client = self.of(platform)
            grouped.setdefault(id(client), (client, []))[1].append(platform)
        return list(grouped.values())


def platform_clocks(apis: PlatformApis, platforms: Iterable[str]) -> dict[str, Callable[[], datetime]]:
    """Return the server clock of each platform, by which runs are due."""
    clocks: dict[str, Callable[[], datetime]] = {}
    for client, names in apis.groups(platforms):
        clock: Callable[[], datetime] = partial(datetime.now, UTC)
        with suppress(*PREFECT_ERRORS):
            clock = apis.ask(client, server_clock)
        clocks |= dict.fromkeys(names, clock)
    return clocks


def platform_errors(suite: Suite, name: str) -> AbstractContextManager[None]:
    """Convert errors of a platform's API, by default the controller's."""
    platform = suite.platforms.get(name)
    if platform is None or not platform.api:
        return server_errors()
    return server_errors(platform.api, f"platforms.{name}.api", f"set {api_key_variable(name)}")


@contextmanager
def open_apis(suite: Suite) -> Iterator[PlatformApis]:
    """Open the clients of all the suite's APIs, one for each key."""
    with ExitStack() as stack:
        own = stack.enter_context(open_client())
        opened: dict[tuple[str, str], SyncPrefectClient] = {}
        others: dict[str, SyncPrefectClient] = {}
        for name, platform in suite.platforms.items():
            if platform.api:
                given = (platform.api, variable(api_key_variable(name)))
                if given not in opened:
                    opened[given] = stack.enter_context(_client(*given))
                others[name] = opened[given]
        yield PlatformApis(own, others)


def _client(api: str, key: str) -> SyncPrefectClient:
    """Return a client with this login (`NAME:PASSWORD`) or API key.

    No header of the controller's own API, which may be a secret of its proxy, goes to a different one.
    """
    is_login = ":" in key
    with temporary_settings({PREFECT_CLIENT_CUSTOM_HEADERS: {}}):
        return SyncPrefectClient(
            api, auth_string=key if is_login else None, api_key=key if key and not is_login else None,
            httpx_settings=client_settings(),
        )  # fmt: skip
