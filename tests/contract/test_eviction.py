"""Eviction in one process, while others use what is in the cache."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.staging import Cache, Stager
from plumbline.stores import open_store
from tests.contract.datasets import Dataset, assert_cache_is_right, make_dataset

CHILD = Path(__file__).with_name("cache_child.py")
NAMES = ("one", "two", "three")


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, Dataset]:
    """Three datasets of equal size, published in the folder `store`."""
    store = open_store(f"file://{tmp_path / 'store'}")
    made = {name: make_dataset(12, 5000, seed=seed, name=name) for seed, name in enumerate(NAMES)}
    for dataset in made.values():
        dataset.put(store.create)
    return made


def start(folder: Path, max_bytes: int, names: list[str], *, stdin: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), f"file://{folder / 'store'}", str(folder / "cache"), str(max_bytes), *names]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stage_here(folder: Path, max_bytes: int, name: str) -> None:
    cache = Cache(folder / "cache", max_bytes=max_bytes)
    with Stager(open_store(f"file://{folder / 'store'}"), name, cache) as stager:
        stager.start(stager.manifest.files)
        for file in stager.manifest.files:
            stager.wait(file)


def whole(folder: Path, dataset: Dataset) -> list[bool]:
    """Whether each of its files is in the cache."""
    return [Cache(folder / "cache").path(file.sha256) is not None for file in dataset.manifest.files]


def test_what_another_process_holds_stays_until_that_process_ends_even_if_killed(
    tmp_path: Path, datasets: dict[str, Dataset]
) -> None:
    limit = datasets["one"].size * 2
    with start(tmp_path, limit, ["one"], stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "one\n"
        stage_here(tmp_path, limit, "two")
        stage_here(tmp_path, limit, "three")
        assert all(whole(tmp_path, datasets["one"]))
        assert not any(whole(tmp_path, datasets["two"]))
        holder.kill()
    stage_here(tmp_path, limit, "two")
    assert not any(whole(tmp_path, datasets["one"]))
    assert all(whole(tmp_path, datasets["three"]))


def test_processes_that_evict_and_stage_at_once_never_take_each_others_files(
    tmp_path: Path, datasets: dict[str, Dataset]
) -> None:
    """The limit has room for one dataset: each start evicts, unless the others hold what it would take."""
    limit, rng = datasets["one"].size, random.Random(4)
    orders = [[name for _ in range(8) for name in rng.sample(NAMES, 3)] for _ in range(4)]
    processes = [start(tmp_path, limit, names, stdin=subprocess.DEVNULL) for names in orders]
    for process, names in zip(processes, orders, strict=True):
        out, err = process.communicate(timeout=60)
        assert not err
        assert process.returncode == 0
        assert out.split() == names
    assert_cache_is_right(Cache(tmp_path / "cache"))
    stage_here(tmp_path, limit, "one")
    assert [all(whole(tmp_path, datasets[name])) for name in NAMES] == [True, False, False]
