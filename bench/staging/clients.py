"""The contenders: each moves all the dataset's shards once, with or without SHA-256, to nowhere or to disk.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
Run = Callable[[], int]


class Clients:
    """Contenders by name: `WHO-WHAT-CONNECTIONS`, as in `plumbline-s3-4`."""

    def __init__(self, url: str, folder: Path) -> None:
        os.environ.update(ENVIRONMENT | {"AWS_ENDPOINT_URL": url, "PLUMBLINE_AZURE_ENDPOINT": url + "/{account}"})
        self.url = url
        self.folder = folder
        shards = sorted((folder / "train").iterdir())
        self.keys = [f"{NAME}/train/{path.name}" for path in shards]
        self._stores: dict[str, Store] = {}
        self.size = sum(path.stat().st_size for path in shards)

    def make(self, name: str, *, verify: bool = True) -> Run:
        """Return the client of this name."""
        who, _, rest = name.partition("-")
        what, _, count = rest.rpartition("-")
        item: Callable[[str], int] = getattr(self, f"_{who}")(what, verify) if who != "stager" else self._whole
        if who in ("stager", "s5cmd"):
            return lambda: getattr(self, f"_run_{who}")(what, int(count), verify)

        def run() -> int:
            with ThreadPoolExecutor(int(count)) as pool:
                return sum(pool.map(item, self.keys))

        return run

    def _whole(self, _: str) -> int:
        return 0

    def _s5cmd(self, _what: str, _verify: bool) -> Callable[[str], int]:
        return self._whole

    def _plumbline(self, what: str, verify: bool) -> Callable[[str], int]:
        store = self._store(what)

        def one(key: str) -> int:
            with store.open(key) as reader:
                return drain(reader.readinto, verify)

        return one

    def _store(self, scheme: str) -> Store:
        if scheme not in self._stores:
            from plumbline.data.stores import open_store

            url = {"s3": "s3://bucket", "az": f"az://{ACCOUNT}/bucket"}[scheme]
            store: Any = open_store(url)
            self._stores[scheme] = store
        return self._stores[scheme]

    def _obstore(self, what: str, verify: bool) -> Callable[[str], int]:
        import obstore
        from obstore.store import AzureStore, S3Store

        options: Any = {"allow_http": True}
        if what == "s3":
            store: Any = S3Store(
                "bucket", endpoint=self.url, region="us-east-1", access_key_id="bench", secret_access_key="bench",
                client_options=options, virtual_hosted_style_request=False,
            )  # fmt: skip
        else:
            store = AzureStore(
                "bucket",
                account_name=ACCOUNT,
                account_key=KEY,
                endpoint=f"{self.url}/{ACCOUNT}",
                client_options=options,
            )

        def one(key: str) -> int:
            hasher, total = hashlib.sha256(), 0
            for chunk in obstore.get(store, key).stream(min_chunk_size=BUFFER):
                if verify:
                    hasher.update(chunk)
                total += len(chunk)
            return total

        return one

    def _boto3(self, what: str, verify: bool) -> Callable[[str], int]:
        """Use `download_file`, then hash the file; `what` is its destination."""
        import boto3

        client = boto3.client("s3")

        def one(key: str) -> int:
            with tempfile.NamedTemporaryFile(dir=target(what)) as file:
                client.download_file("bucket", key, file.name)
                return drain_file(Path(file.name), verify)

        return one

    def _azuresdk(self, _what: str, verify: bool) -> Callable[[str], int]:
        """Use the SDK's `download_blob().readinto()`."""
        from azure.storage.blob import ContainerClient

        client = ContainerClient(
            f"{self.url}/{ACCOUNT}", "bucket", credential={"account_name": ACCOUNT, "account_key": KEY}
        )

        class Sink:
            def __init__(self) -> None:
                self.hasher, self.total = hashlib.sha256(), 0

            def write(self, data: bytes) -> int:
                if verify:
                    self.hasher.update(data)
                self.total += len(data)
                return len(data)

        def one(key: str) -> int:
            sink = Sink()
            client.download_blob(key, raw_request_hook=plain_range).readinto(sink)  # type: ignore[arg-type]
            return sink.total

        return one

    def _http(self, _what: str, verify: bool) -> Callable[[str], int]:
        import http.client

        address = urlsplit(self.url)

        def one(key: str) -> int:
            connection = http.client.HTTPConnection(str(address.hostname), address.port)
            connection.request("GET", f"/bucket/{key}")
            total = drain(connection.getresponse().readinto, verify)
            connection.close()
            return total

        return one

    def _copy(self, what: str, verify: bool) -> Callable[[str], int]:
        def one(key: str) -> int:
            with tempfile.NamedTemporaryFile(dir=target(what)) as file:
                shutil.copyfile(self.folder.parent / key, file.name)
                return drain_file(Path(file.name), verify)

        return one

    def _run_stager(self, what: str, connections: int, _verify: bool) -> int:
        from plumbline.data.staging import Cache, Stager

        scheme, _, where = what.partition("-")
        with (
            tempfile.TemporaryDirectory(dir=target(where)) as folder,
            Stager(self._store(scheme), NAME, Cache(Path(folder)), connections=connections, window=8) as stager,
        ):
            stager.start(stager.manifest.train)
            for file in stager.manifest.train:
                stager.wait(file)
            return stager.bytes_moved

    def _run_s5cmd(self, what: str, count: int, verify: bool) -> int:
        binary = shutil.which("s5cmd") or str(Path(".venv/peers/s5cmd/bin/s5cmd"))
        with tempfile.TemporaryDirectory(dir=target(what)) as folder:
            lines = "".join(f"cp s3://bucket/{key} {folder}/{number}\n" for number, key in enumerate(self.keys))
            command = [binary, "--endpoint-url", self.url, "--numworkers", str(count), "run"]
            subprocess.run(command, input=lines, text=True, check=True, stdout=subprocess.DEVNULL)
            return sum(drain_file(Path(folder) / str(number), verify) for number in range(len(self.keys)))


def plain_range(request: Any) -> None:
    """Blob storage reads `x-ms-range`, a plain HTTP server only `Range`."""
    headers = request.http_request.headers
    if "x-ms-range" in headers:
        headers["Range"] = headers["x-ms-range"]


def target(where: str) -> str:
    """Return the folder for files: `shm` in memory, else on disk."""
    return "/dev/shm" if where == "shm" else tempfile.gettempdir()


_own = threading.local()


def drain(readinto: Callable[[memoryview], int], verify: bool) -> int:
    """Read to the end into one buffer per thread; return the bytes read."""
    if not hasattr(_own, "buffer"):
        _own.buffer = memoryview(bytearray(BUFFER))
    hasher, total = hashlib.sha256(), 0
    while size := readinto(_own.buffer):
        if verify:
            hasher.update(_own.buffer[:size])
        total += size
    return total


def drain_file(path: Path, verify: bool) -> int:
    """Hash a file that was downloaded."""
    if not verify:
        return path.stat().st_size
    with path.open("rb", buffering=0) as file:
        return drain(file.readinto, verify)  # type: ignore[arg-type]
