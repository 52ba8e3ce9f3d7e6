"""Several processes on one cache, killed processes, and a full disk."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.staging import Cache, Stager
from plumbline.data.stores import open_store
from tests.commands import run
from tests.contract import stage_child
from tests.contract.conftest import give_aws
from tests.contract.datasets import Dataset, assert_cache_is_right, make_dataset, temporary_files
from tests.faultserver.server import FaultServer

FORKS = multiprocessing.get_context("forkserver")
URL = "s3://bucket/data"
# A small file system in a namespace of its own, as root of that namespace alone.
ON_SMALL_DISK = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mount -t tmpfs -o size=70m,nr_inodes=300 none "$0"'


@pytest.fixture
def dataset(clean_environment: pytest.MonkeyPatch, fault_server: FaultServer) -> Dataset:
    """Return a dataset of 2.2 MB on a server of 4 MiB/s per connection."""
    give_aws(clean_environment, fault_server.url)
    fault_server.rate = 4 << 20
    made = make_dataset(8, 250_000)
    fault_server.objects = {f"/bucket/data/{key}": data for key, data in made.objects.items()}
    return made


class Child:
    """Process that stages the dataset, forked from a server that has imported the stager once."""

    def __init__(self, cache: Path, connections: int = 2, max_file_bytes: int | None = None) -> None:
        limit = [] if max_file_bytes is None else [str(max_file_bytes)]
        arguments = [URL, str(cache), str(connections), *limit]
        self._output, theirs = FORKS.Pipe(duplex=False)
        self.process = FORKS.Process(target=stage_child.run, args=(dict(os.environ), arguments, theirs))
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)

    def finish(self) -> dict[str, Any]:
        """Return what it wrote, which is its answer and no line on stderr."""
        with open(self._output.fileno(), closefd=False) as output:
            written = output.read()
        self.process.join(60)
        answer: dict[str, Any] = json.loads(written)
        return answer


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_on_one_cache_move_each_byte_once(
    dataset: Dataset, fault_server: FaultServer, tmp_path: Path, processes: int
) -> None:
    answers = [child.finish() for child in [Child(tmp_path) for _ in range(processes)]]
    assert sum(answer["moved"] for answer in answers) == dataset.size
    assert any(entry.end is not None for entry in fault_server.served), "nothing was striped"
    assert fault_server.body_bytes("parquet|tokenizer") == dataset.size
    assert_cache_is_right(Cache(tmp_path))
    assert temporary_files(tmp_path) == []


def on_disk(cache: Path, dataset: Dataset) -> dict[str, int]:
    """Return the bytes of each staged object by its path on the server."""
    result = {}
    for file in dataset.manifest.files:
        try:
            # The part first: a living child may rename it to the whole file at any moment.
            size = (cache / "parts" / f"{file.sha256}.part").stat().st_size
        except FileNotFoundError:
            size = file.size if Cache(cache).path(file.sha256) else 0
        result[f"/bucket/data/reviews/{file.key}"] = size
    return result


@pytest.mark.long
def test_twenty_kills_lose_no_byte_and_leave_no_lock(
    clean_environment: pytest.MonkeyPatch, dataset: Dataset, fault_server: FaultServer, tmp_path: Path
) -> None:
    rng, pause, asked = random.Random(20), threading.Event(), 0
    for moment in range(20):
        before = on_disk(tmp_path, dataset)
        clean_environment.setenv("AWS_SDK_UA_APP_ID", f"child-{moment}.")
        child = Child(tmp_path)
        enough = rng.randrange(dataset.size // 15)
        deadline = time.monotonic() + 120
        while sum(on_disk(tmp_path, dataset).values()) < sum(before.values()) + enough:
            assert time.monotonic() < deadline
            if not child.process.is_alive():
                break
            pause.wait(0.001)
        child.kill()
        for agent, path, offset in fault_server.asked:
            # It asked on from where the disk stood, and not at all for what was whole.
            if f"child-{moment}." in agent:
                assert offset >= before.get(path, 0), path
                asked += 1
        for part in tmp_path.glob("parts/*.part"):
            with part.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert_cache_is_right(Cache(tmp_path))
    assert asked >= 10
    assert any(entry.end is not None for entry in fault_server.served), "nothing was striped"
    left = dataset.size - sum(on_disk(tmp_path, dataset).values())
    assert Child(tmp_path).finish() == {"moved": left}
    assert_cache_is_right(Cache(tmp_path))
    assert temporary_files(tmp_path) == []


@pytest.mark.parametrize("limit", [0, 10, 4096, 100_000, 249_999])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(dataset: Dataset, tmp_path: Path, limit: int) -> None:
    """The operating system itself refuses to let a file grow past the limit."""
    child = Child(tmp_path, connections=4, max_file_bytes=limit)
    answer = child.finish()
    assert child.process.exitcode == 3
    assert answer["error"] == "DiskFullError"
    assert "free some space" in answer["what"]
    assert temporary_files(tmp_path) == []
    assert_cache_is_right(Cache(tmp_path))
    assert Child(tmp_path).finish()["moved"] <= dataset.size
    assert_cache_is_right(Cache(tmp_path))


@pytest.mark.first(1)
@pytest.mark.mount
@pytest.mark.parametrize(
    ("kind", "left"), [("bytes", 0), ("bytes", 5000), ("bytes", 300_000), ("bytes", 900_000), ("files", 3)]
)
def test_a_disk_that_fills_under_way_is_one_clear_error_and_leaves_nothing(
    dataset: Dataset, fault_server: FaultServer, tmp_path: Path, kind: str, left: int
) -> None:
    """No room is left, or no file."""
    fault_server.rate = 1 << 20
    child = [sys.executable, "-m", "tests.contract.full_disk_child", URL, str(tmp_path), kind, str(left)]
    done = run(*ON_SMALL_DISK, f'{MOUNT} && exec "$@"', tmp_path, *child, cwd=Path(__file__).parents[2])
    assert not done.stderr
    answer = json.loads(done.stdout)
    assert (answer["error"], answer["code"]) == ("DiskFullError", 3)
    assert "free some space" in answer["what"]
    assert answer["temporary"] == answer["wrong"] == answer["wrong_later"] == []
    assert answer["all"] == dataset.size


def test_a_warm_start_moves_nothing(
    clean_environment: pytest.MonkeyPatch, fault_server: FaultServer, tmp_path: Path
) -> None:
    give_aws(clean_environment, fault_server.url)
    made = make_dataset(1000, 100)
    fault_server.objects = {f"/bucket/data/{key}": data for key, data in made.objects.items()}
    store = open_store(URL)
    for moved in (made.size, 0):
        sent = fault_server.body_bytes()
        with Stager(store, "reviews", Cache(tmp_path)) as stager:
            stager.start(stager.manifest.files)
            for file in stager.manifest.files:
                stager.wait(file)
            assert stager.bytes_moved == moved
            assert stager.progress().hits == (0 if moved else 1002)
        if not moved:
            assert fault_server.body_bytes() == sent
            assert stager.waits == []
