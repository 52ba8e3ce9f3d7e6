"""Count what a reader walks through: the product's functions that a test enters, their files, and calls between rooms.

`python -m pytest -p bench.judge.walks -q -s TEST...` prints one line for each test: functions entered, their files
and rooms (folders of the product), and calls, of all and from one room into another.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = tuple(f"{ROOT}/{folder}/" for folder in ("plumbline", "tasks", "flows"))


def place_of(frame: FrameType | None) -> tuple[str, str] | None:
    """Return file and function of a frame of the product."""
    if frame is None or not frame.f_code.co_filename.startswith(ROOMS):
        return None
    return frame.f_code.co_filename.removeprefix(f"{ROOT}/"), frame.f_code.co_qualname


def room_of(file: str) -> str:
    """Return the room of a file, such as `plumbline/judge`."""
    return "/".join(Path(file).parts[:2]) if file.startswith("plumbline/") else Path(file).parts[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Profile the test."""
    stops: dict[tuple[str, str], int] = {}
    crossings: list[tuple[str, str]] = []

    def entered(frame: FrameType, event: str, _argument: object) -> None:
        place = place_of(frame) if event == "call" else None
        if place is None or place[1].startswith("<") or "<lambda>" in place[1]:
            return
        stops[place] = stops.get(place, 0) + 1
        caller = place_of(frame.f_back)
        if caller is not None and room_of(caller[0]) != room_of(place[0]):
            crossings.append((room_of(caller[0]), room_of(place[0])))

    sys.setprofile(entered)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        files = {file for file, _ in stops}
        rooms, ways = {room_of(file) for file in files}, set(crossings)
        print(
            f"\n{item.name}: {len(stops)} functions, {len(files)} files, {len(rooms)} rooms, {len(ways)} ways between"
            f" rooms, {sum(stops.values())} calls, of these {len(crossings)} between rooms"
        )
