"""Count what a reader of a test walks through: functions of the product, their files, and climbs between rooms.

`python -m pytest -p bench.judge.walks -q -s TEST...` prints one line for each test. With `PLUMBLINE_BENCH_WALKS=FILE`
each line is also appended to the file as JSON, with the functions of each room (a folder of the product).

- Stops are the functions that run. Comprehensions and lambdas belong to their function.
- Climbs are the pairs of a calling and a called function in different rooms, each pair counted once. Frames of
  libraries between both, such as Prefect's, are left out.
- Calls are counted as often as they happen; a loop that waits makes them vary.

All modules of the product are imported before, so that nothing that an import runs is counted. Threads that the
product starts are counted, threads of the test are not.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = tuple(f"{ROOT}/{folder}/" for folder in ("plumbline", "tasks", "flows"))
TESTS = f"{ROOT}/tests/"
_OPTIMIZED = 1
"""Flag of the code of a function (`inspect.CO_OPTIMIZED`); bodies of modules and classes have it not."""


class Stop(NamedTuple):
    """Function of the product."""

    file: str
    name: str

    @property
    def room(self) -> str:
        """Return the folder or single module below `plumbline`, such as `judge` or `digest`."""
        return self.file.removeprefix("plumbline/").partition("/")[0].removesuffix(".py")


class Walk:
    """Stops and climbs of one test."""

    def __init__(self) -> None:
        self.calls: Counter[Stop] = Counter()
        self.climbs: Counter[tuple[Stop, Stop]] = Counter()
        self._stops: dict[CodeType, Stop | None] = {}
        self._test_threads: dict[int, bool] = {threading.get_ident(): False}
        self._over = False

    def stop_of(self, code: CodeType) -> Stop | None:
        """Return the function of a code object, or None if it is not the product's."""
        if code not in self._stops:
            name = code.co_qualname
            while name.endswith(">") and ".<locals>." in name:
                name = name.rpartition(".<locals>.")[0]
            is_function = bool(code.co_flags & _OPTIMIZED) and not name.startswith("<")
            is_ours = code.co_filename.startswith(ROOMS) and code.co_filename.endswith(".py")  # no template of a page
            stop = Stop(code.co_filename.removeprefix(f"{ROOT}/"), name)
            self._stops[code] = stop if is_function and is_ours else None
        return self._stops[code]

    def caller_of(self, frame: FrameType) -> Stop | None:
        """Return the nearest function of the product that called a frame, or None if a test did."""
        back = frame.f_back
        while back is not None and not back.f_code.co_filename.startswith(TESTS):
            if stop := self.stop_of(back.f_code):
                return stop
            back = back.f_back
        return None

    def is_of_test(self, frame: FrameType) -> bool:
        """Return whether the running thread is one that the test started."""
        thread = threading.get_ident()
        if thread not in self._test_threads:
            back: FrameType | None = frame
            while back is not None and not back.f_code.co_filename.startswith(TESTS):
                back = back.f_back
            self._test_threads[thread] = back is not None
        return self._test_threads[thread]

    def enter(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count the call of a function of the product."""
        stop = None if self._over or event != "call" else self.stop_of(frame.f_code)
        if stop is None or frame.f_code.co_qualname.endswith(">") or self.is_of_test(frame):
            return
        self.calls[stop] += 1
        caller = self.caller_of(frame)
        if caller is not None and caller.room != stop.room:
            self.climbs[caller, stop] += 1

    def end(self) -> None:
        """Count no further call, in any thread."""
        self._over = True

    def counts(self, name: str) -> dict[str, Any]:
        """Return the test's numbers."""
        return {
            "test": name, "stops": len(self.calls), "files": len({stop.file for stop in self.calls}),
            "rooms": len({stop.room for stop in self.calls}), "climbs": len(self.climbs),
            "calls": self.calls.total(), "calls_between_rooms": self.climbs.total(),
            "stops_of_rooms": dict(sorted(Counter(stop.room for stop in self.calls).items())),
        }  # fmt: skip


def import_product() -> None:
    """Import each module of the product that can be imported here."""
    linked = Path(ROOMS[0]) / "flows"  # a link to the folder beside it: a flow of two names would be two flows
    for top in ROOMS[:1] if linked.exists() else ROOMS:
        for folder, _, names in os.walk(top, followlinks=True):
            package = Path(folder).relative_to(ROOT).parts
            for name in names:
                if name.endswith(".py") and name != "__main__.py":
                    with suppress(Exception):  # such as a module for another system
                        importlib.import_module(
                            ".".join((*package, name.removesuffix(".py"))).removesuffix(".__init__")
                        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Profile the test."""
    import_product()
    walk = Walk()
    threading.setprofile(walk.enter)
    sys.setprofile(walk.enter)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        walk.end()
        counts = walk.counts(item.nodeid)
        shown = ", ".join(f"{value} {key}" for key, value in counts.items() if isinstance(value, int))
        print(f"\n{item.nodeid}: {shown.replace('_', ' ')}")
        if file := os.environ.get("PLUMBLINE_BENCH_WALKS"):
            with Path(file).open("a", encoding="utf-8") as out:
                out.write(json.dumps(counts) + "\n")
