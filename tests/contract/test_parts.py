"""Complete parts of processes that are killed or slow just before the rename."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plumbline.data.staging import Cache
from tests.contract.datasets import Dataset, assert_cache_is_right, make_dataset, temporary_files
from tests.contract.part_child import NOBODY

CHILD = Path(__file__).with_name("part_child.py")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that every user can access, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        for part in ("data", "cache"):
            (Path(name) / part).mkdir()
            (Path(name) / part).chmod(0o777)
        yield Path(name)


@pytest.fixture
def dataset(folder: Path) -> Dataset:
    """Return three small files, below the size for stripes."""
    made = make_dataset(1, 5000)

    def write(key: str, data: bytes) -> None:
        path = folder / "data" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    made.put(write)
    return made


@contextmanager
def child(folder: Path, *how: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(CHILD), f"file://{folder}/data", str(folder / "cache"), *how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def part_of(folder: Path) -> tuple[Path, int]:
    """Return the only part, and its length."""
    (part,) = (folder / "cache" / "parts").glob("*.part")
    return part, part.stat().st_size


def kill_in_sync(folder: Path) -> int:
    """Kill a child during the sync of a complete file; return its length."""
    with child(folder, "hold") as process:
        assert line(process) == "in sync"
    return part_of(folder)[1]


def test_a_kill_in_the_last_sync_keeps_no_user_from_the_file(folder: Path, dataset: Dataset) -> None:
    whole = kill_in_sync(folder)
    assert whole in {file.size for file in dataset.manifest.files}
    assert part_of(folder)[0].stat().st_mode & 0o200, "its owner cannot open it"
    with child(folder) as process:
        assert json.loads(line(process)) == {"moved": dataset.size - whole}
    assert_cache_is_right(Cache(folder / "cache"))
    assert temporary_files(folder) == []


def test_who_meets_another_in_its_last_sync_waits_for_it(folder: Path, dataset: Dataset) -> None:
    with child(folder, "hold") as first:
        assert line(first) == "in sync"
        with child(folder) as second:
            assert line(second) == "waiting"
            first.stdin.write("\n")
            first.stdin.flush()
            moved = [json.loads(line(process))["moved"] for process in (first, second)]
    assert sum(moved) == dataset.size


def test_what_is_verified_can_be_read_by_all_and_written_by_none(folder: Path, dataset: Dataset) -> None:
    with child(folder) as process:
        assert json.loads(line(process)) == {"moved": dataset.size}
    modes = {path.stat().st_mode & 0o777 for path in (folder / "cache" / "objects").glob("*/*")}
    owners = {path.stat().st_uid for path in (folder / "cache" / "objects").glob("*/*")}
    assert modes == {0o444}
    assert owners == {NOBODY if os.getuid() == 0 else os.getuid()}
