"""Eviction in one process during use of the cache by others."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.data.staging import Cache, cache_limit
from plumbline.data.stores import open_store
from plumbline.schema.errors import ConfigurationError, DiskFullError, PlumblineError, UnavailableError
from tests.contract.datasets import Dataset, assert_cache_is_right, make_dataset, stage

CHILD = Path(__file__).with_name("cache_child.py")
NFS_CHILD = Path(__file__).with_name("nfs_child.py")
NAMES = ("one", "two", "three")


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, Dataset]:
    """Three datasets of equal size, published in the folder `store`."""
    store = open_store(f"file://{tmp_path / 'store'}")
    made = {name: make_dataset(12, 5000, seed=seed, name=name) for seed, name in enumerate(NAMES)}
    for dataset in made.values():
        dataset.put(store.create)
    return made


def start(folder: Path, max_bytes: int, names: list[str], *, stdin: int, child: Path = CHILD) -> subprocess.Popen[str]:
    command = [sys.executable, str(child), f"file://{folder / 'store'}", str(folder / "cache"), str(max_bytes), *names]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stage_here(folder: Path, max_bytes: int, name: str) -> None:
    cache = Cache(folder / "cache", max_bytes=max_bytes)
    stage(open_store(f"file://{folder / 'store'}"), cache, name)


def whole(folder: Path, dataset: Dataset) -> list[bool]:
    """Return whether all files of a dataset are in the cache."""
    return [Cache(folder / "cache").path(file.sha256) is not None for file in dataset.manifest.files]


def test_what_another_process_holds_stays_until_that_process_ends_even_if_killed(
    tmp_path: Path, datasets: dict[str, Dataset]
) -> None:
    limit = datasets["one"].size * 2
    with start(tmp_path, limit, ["one"], stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "one\n"
        stage_here(tmp_path, limit, "two")
        stage_here(tmp_path, limit, "three")
        assert all(whole(tmp_path, datasets["one"]))
        assert not any(whole(tmp_path, datasets["two"]))
        holder.kill()
    stage_here(tmp_path, limit, "two")
    assert not any(whole(tmp_path, datasets["one"]))
    assert all(whole(tmp_path, datasets["three"]))


@pytest.mark.long
def test_processes_that_evict_and_stage_at_once_never_take_each_others_files(
    tmp_path: Path, datasets: dict[str, Dataset]
) -> None:
    """The limit has room for one dataset: each start evicts, unless one of seven readers holds what it would take."""
    limit, rng = datasets["one"].size, random.Random(4)
    orders = [[name for _ in range(5) for name in rng.sample(NAMES, 3)] for _ in range(8)]
    processes = [start(tmp_path, limit, names, stdin=subprocess.DEVNULL) for names in orders]
    for process, names in zip(processes, orders, strict=True):
        out, err = process.communicate(timeout=120)
        assert not err
        assert process.returncode == 0
        assert out.split() == names
    assert_cache_is_right(Cache(tmp_path / "cache"))
    stage_here(tmp_path, limit, "one")
    assert [all(whole(tmp_path, datasets[name])) for name in NAMES] == [True, False, False]


def test_a_disk_without_room_gives_up_what_nobody_uses(tmp_path: Path, datasets: dict[str, Dataset]) -> None:
    """Without a limit, and with one far away: the disk itself is short by one dataset."""
    for name in NAMES[:2]:
        stage_here(tmp_path, 1 << 30, name)
    free = [64 << 20]
    cache = Cache(
        tmp_path / "cache", free_bytes=lambda _: free[0] + (0 if all(whole(tmp_path, datasets["one"])) else 1 << 20)
    )
    with start(tmp_path, 1 << 30, ["two"], stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "two\n"
        cache.make_room(datasets["three"].size)
        assert not all(whole(tmp_path, datasets["one"])), "used longest ago"
        assert all(whole(tmp_path, datasets["two"])), "in use"
        holder.kill()


def test_a_disk_that_stays_too_small_costs_nothing_of_the_cache(tmp_path: Path, datasets: dict[str, Dataset]) -> None:
    stage_here(tmp_path, 1 << 30, "one")
    cache = Cache(tmp_path / "cache", free_bytes=lambda _: 0)
    with pytest.raises(DiskFullError, match="are free"):
        cache.make_room(1 << 30)
    assert all(whole(tmp_path, datasets["one"]))


def test_two_processes_under_the_lock_rules_of_nfs(tmp_path: Path, datasets: dict[str, Dataset]) -> None:
    """NFSv4 locks bytes: a shared lock needs a file open for reading, an exclusive one a file open for writing."""
    limit = datasets["one"].size
    orders = [["one", "two", "three"] * 3, ["three", "two", "one"] * 3]
    processes = [start(tmp_path, limit, names, stdin=subprocess.DEVNULL, child=NFS_CHILD) for names in orders]
    for process, names in zip(processes, orders, strict=True):
        out, err = process.communicate(timeout=120)
        assert not err
        assert out.split() == names
    assert_cache_is_right(Cache(tmp_path / "cache"))


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ESTALE])
def test_a_file_system_without_locks_is_one_line(
    tmp_path: Path, datasets: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert datasets
    with pytest.raises(UnavailableError, match=f"the cache cannot be used: {os.strerror(number)}"):
        stage_here(tmp_path, 1 << 30, "one")
    with pytest.raises(UnavailableError, match=os.strerror(number)):
        Cache(tmp_path / "cache", max_bytes=1 << 30).make_room(1)


def obstacle(cache: Path, name: str, kind: str) -> None:
    path = cache / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_bytes(b"")
    else:
        (path / "inside").mkdir(parents=True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", "file"), ("leases", "file"), ("manifests", "file"), ("current", "file"), ("parts", "file"),
        ("objects", "file"), ("eviction.lock", "folder"),
    ],
)  # fmt: skip
def test_whatever_stands_in_the_way_is_one_line(
    tmp_path: Path, datasets: dict[str, Dataset], name: str, kind: str
) -> None:
    assert datasets
    obstacle(tmp_path / "cache", name, kind)
    with pytest.raises(PlumblineError) as caught:
        stage_here(tmp_path, 1 << 30, "one")
    assert str(tmp_path / "cache") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("1.5K", 1536), ("200GiB", 200 << 30), ("2 TB", 2 << 40), ("64mib", 64 << 20)],
)
def test_the_limit_is_a_size(tmp_path: Path, text: str, size: int) -> None:
    assert cache_limit(tmp_path, {"PLUMBLINE_CACHE_MAX": text}) == size


def test_the_limit_is_a_share_of_the_disk_by_default(tmp_path: Path) -> None:
    total = shutil.disk_usage(tmp_path).total
    assert cache_limit(tmp_path / "not" / "made", {}) == int(total * 0.8)
    assert cache_limit(tmp_path, {"PLUMBLINE_CACHE_MAX": "25%"}) == int(total * 0.25)


@pytest.mark.parametrize("text", ["much", "-1", "0%", "101%", "10 elephants", "1e9"])
def test_a_limit_that_is_no_size_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="PLUMBLINE_CACHE_MAX"):
        cache_limit(tmp_path, {"PLUMBLINE_CACHE_MAX": text})
