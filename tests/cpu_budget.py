"""Budget of a test of `make test`: CPU seconds of this process and of the children that it waited for.

CPU seconds hardly depend on what else the machine does. Fixtures of the session belong to no test. What ends with a
module is not counted, since many tests shared it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

MAX_CPU_SECONDS = 10.0
_LISTED = 15
_PROPERTY = "cpu_seconds"
_charged: list[float] = []
_BEGIN = pytest.StashKey[float]()


def charge(seconds: float) -> None:
    """Add the seconds of a process that is a child of a different one, as those of a forkserver are."""
    _charged.append(seconds)


def _cpu_seconds() -> float:
    return sum(os.times()[:4]) + sum(_charged)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """Exempt the fixtures of the session from the running test's time."""
    begin = _cpu_seconds()
    try:
        return (yield)
    finally:
        if fixturedef.scope == "session" and isinstance(item := request._pyfuncitem, pytest.Item):
            item.stash[_BEGIN] += _cpu_seconds() - begin


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin a test's time."""
    item.stash[_BEGIN] = _cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that is above the budget, and is neither marked long nor a round of `tests/e2e`."""
    yield
    seconds = _cpu_seconds() - item.stash[_BEGIN]
    item.user_properties.append((_PROPERTY, seconds))
    is_exempt = any(map(item.get_closest_marker, ("long", "e2e")))
    assert is_exempt or seconds <= MAX_CPU_SECONDS, (
        f"{seconds:.1f} CPU seconds are more than the {MAX_CPU_SECONDS:.0f} of a test of `make test`: make it cheaper, "
        "or mark it `@pytest.mark.long`, for `make test-all`"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that took the most CPU seconds."""
    reports = {
        report.nodeid: dict(report.user_properties).get(_PROPERTY, 0.0)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    }
    terminalreporter.section(f"{sum(reports.values()):.0f} CPU seconds in tests; most of them in")
    for nodeid, seconds in sorted(reports.items(), key=lambda pair: -pair[1])[:_LISTED]:
        terminalreporter.line(f"{seconds:7.1f} {nodeid}")
