"""The contenders: each moves all the dataset's shards once, with SHA-256, to nowhere or to files in memory.

Each imports what it needs when it is made, so that a cold start counts its own imports and nobody else's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plumbline.data.stores import Store

ACCOUNT = "devstoreaccount1"
NAME = "bench"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1",
    "AZURE_STORAGE_KEY": KEY, "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip
BUFFER = 1 << 20
MEMORY = "/dev/shm"
Run = Callable[[], int]


class Clients:
    """Contenders by name: `WHO-STORE-CONNECTIONS`, as in `plumbline-s3-4`; `shm` writes to files in memory."""

    def __init__(self, url: str, folder: Path) -> None:
        os.environ.update(ENVIRONMENT | {"AWS_ENDPOINT_URL": url, "PLUMBLINE_AZURE_ENDPOINT": url + "/{account}"})
        self.url = url
        shards = sorted((folder / "train").iterdir())
        self.keys = [f"{NAME}/train/{path.name}" for path in shards]
        self._stores: dict[str, Store] = {}
        self.size = sum(path.stat().st_size for path in shards)

    def make(self, name: str) -> Run:
        """Return the client of this name."""
        who, what, *_, count = name.split("-")
        if who in ("stager", "s5cmd"):
            return partial(getattr(self, f"_run_{who}"), what, int(count))
        item: Callable[[str], int] = getattr(self, f"_{who}")(what)

        def run() -> int:
            with ThreadPoolExecutor(int(count)) as pool:
                return sum(pool.map(item, self.keys))

        return run

    def _store(self, scheme: str) -> Store:
        if scheme not in self._stores:
            from plumbline.data.stores import open_store

            self._stores[scheme] = open_store({"s3": "s3://bucket", "az": f"az://{ACCOUNT}/bucket"}[scheme])
        return self._stores[scheme]

    def _plumbline(self, what: str) -> Callable[[str], int]:
        store = self._store(what)

        def item(key: str) -> int:
            with store.open(key) as reader:
                return drain(reader.readinto)

        return item

    def _obstore(self, what: str) -> Callable[[str], int]:
        import obstore
        from obstore.store import AzureStore, S3Store

        options: Any = {"allow_http": True}
        if what == "s3":
            store: Any = S3Store(
                "bucket", endpoint=self.url, region="us-east-1", access_key_id="bench", secret_access_key="bench",
                client_options=options, virtual_hosted_style_request=False,
            )  # fmt: skip
        else:
            endpoint = f"{self.url}/{ACCOUNT}"
            store = AzureStore(
                "bucket", account_name=ACCOUNT, account_key=KEY, endpoint=endpoint, client_options=options
            )

        def item(key: str) -> int:
            hasher, total = hashlib.sha256(), 0
            for chunk in obstore.get(store, key).stream(min_chunk_size=BUFFER):
                hasher.update(chunk)
                total += len(chunk)
            return total

        return item

    def _boto3(self, _what: str) -> Callable[[str], int]:
        """Use `download_file`, then hash the file."""
        import boto3

        client = boto3.client("s3")

        def item(key: str) -> int:
            with tempfile.NamedTemporaryFile(dir=MEMORY) as file:
                client.download_file("bucket", key, file.name)
                return drain_file(Path(file.name))

        return item

    def _run_stager(self, scheme: str, connections: int) -> int:
        from plumbline.data.staging import Cache, Stager

        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as folder,
            Stager(self._store(scheme), NAME, Cache(Path(folder)), connections=connections, window=8) as stager,
        ):
            stager.start(stager.manifest.train)
            for file in stager.manifest.train:
                stager.wait(file)
            return stager.bytes_moved

    def _run_s5cmd(self, _what: str, count: int) -> int:
        binary = shutil.which("s5cmd") or ".venv/peers/s5cmd/bin/s5cmd"
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            lines = "".join(f"cp s3://bucket/{key} {folder}/{number}\n" for number, key in enumerate(self.keys))
            command = [binary, "--endpoint-url", self.url, "--numworkers", str(count), "run"]
            subprocess.run(command, input=lines, text=True, check=True, stdout=subprocess.DEVNULL)
            return sum(drain_file(Path(folder) / str(number)) for number in range(len(self.keys)))


_own = threading.local()


def drain(readinto: Callable[[memoryview], int]) -> int:
    """Hash all bytes by one buffer per thread; return their number."""
    if not hasattr(_own, "buffer"):
        _own.buffer = memoryview(bytearray(BUFFER))
    hasher, total = hashlib.sha256(), 0
    while size := readinto(_own.buffer):
        hasher.update(_own.buffer[:size])
        total += size
    return total


def drain_file(path: Path) -> int:
    """Hash a file that was downloaded."""
    with path.open("rb", buffering=0) as file:
        return drain(file.readinto)  # type: ignore[arg-type]
