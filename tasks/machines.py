"""Machine groups of a round: start, stop, alert if left running."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Self

from prefect import get_run_logger
from prefect.runtime import flow_run

from plumbline.data.stores import open_store
from plumbline.night.alerts import AlertBook, AlertState, add_once, left_on_message
from plumbline.night.central import CentralStore
from plumbline.night.machines import open_group, wanted_sizes
from plumbline.schema.errors import PlumblineError, SupersededError
from plumbline.schema.suite import Suite
from plumbline.tasks.open_round import refuse_superseded
from plumbline.tasks.prefect_client.api import open_client, server_errors
from plumbline.tasks.prefect_client.recovery import read_open_rounds


class Machines:
    """Machine groups of a suite, running while platforms train: a context that stops them when it ends.

    A group that cannot be started makes its platforms unavailable, no others. A group that cannot be stopped is an
    error in the log, and an alert of the watch.
    """

    def __init__(self, suite: Suite, round_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._suite, self._round_id, self._sizes = suite, round_id, wanted_sizes(suite)
        self._asked: dict[str, int] = {}
        self._clock, self._since = clock, dict[str, float]()
        self._seconds = dict.fromkeys(self._sizes, 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep_up(frozenset())

    def keep_up(self, platforms: Collection[str]) -> None:
        """Start the machine groups of these platforms, and stop all others."""
        busy = {self._suite.platforms[name].machines for name in platforms}
        sizes = {url: size if url in busy else 0 for url, size in self._sizes.items()}
        # A group that is needed is asked for again: an idle machine ends itself.
        changed = {url: size for url, size in sizes.items() if size or self._asked.get(url) != 0}
        if not all(changed.values()) and _are_needed(self._suite, self._round_id):
            changed = {url: size for url, size in changed.items() if size}
        _resize(changed)
        self._asked |= changed
        now = self._clock()
        for url, size in changed.items():
            if size:
                self._since.setdefault(url, now)
            else:
                self._seconds[url] += now - self._since.pop(url, now)

    def seconds_on(self) -> dict[str, float]:
        """Return the seconds for which each platform's machines were asked for, once they are stopped."""
        platforms = self._suite.platforms.items()
        return {name: self._seconds[each.machines] * each.concurrency for name, each in platforms if each.machines}


def _resize(sizes: Mapping[str, int]) -> None:
    logger = get_run_logger()
    for url, problem in _each(sizes, lambda url: open_group(url).resize(sizes[url])).items():
        if isinstance(problem, PlumblineError):
            logger.error("machines: %s not set to %d: %s", url, sizes[url], problem)
        else:
            logger.info("machines: %s set to %d", url, sizes[url])


def _each(urls: Mapping[str, int], action: Callable[[str], int | None]) -> dict[str, int | PlumblineError | None]:
    """Return the action's result or error for each group, in parallel."""

    def attempt(url: str) -> int | PlumblineError | None:
        try:
            return action(url)
        except PlumblineError as error:
            return error

    if not urls:
        return {}
    with ThreadPoolExecutor(min(8, len(urls)), thread_name_prefix="machines") as pool:
        return dict(zip(urls, pool.map(attempt, urls), strict=True))


def _are_needed(suite: Suite, round_id: str) -> bool:
    """Return whether a later run or a different round needs the machines."""
    with suppress(PlumblineError, OSError):  # without an answer the machines are stopped
        try:
            refuse_superseded(suite, round_id)
        except SupersededError:
            return True
        return _is_round_open(suite, datetime.now(UTC), without=flow_run.id)
    return False


def check_left_on(suite: Suite, now: datetime | None = None) -> list[str]:
    """Alert daily about each machine group that runs without a round."""
    now = now or datetime.now(UTC)
    sizes = wanted_sizes(suite)
    if not sizes:
        return []
    try:
        if _is_round_open(suite, now):
            return []
        found = _each(sizes, lambda url: open_group(url).size())
        left = {url: size for url, size in found.items() if isinstance(size, int) and size > 0}
        if left:
            AlertBook(CentralStore(open_store(suite.store)), suite.name).change(
                lambda state: _add(state, suite, left, now)
            )
    except PlumblineError as error:
        return [str(error)]
    return [str(error) for error in found.values() if isinstance(error, PlumblineError)]


def _add(state: AlertState, suite: Suite, left: Mapping[str, int], now: datetime) -> AlertState:
    for url, size in left.items():
        state = add_once(state, left_on_message(suite.name, url, size, now), suite.alerts, now)
    return state


def _is_round_open(suite: Suite, now: datetime, *, without: str | None = None) -> bool:
    """Return whether another round or upgrade of the suite is active."""
    with server_errors(), open_client() as client:
        return any(str(run.id) != str(without) for run in read_open_rounds(client, suite.name, now))
