"""A plain HTTP server that is not the bottleneck: nginx with static files, looking like S3 and like Blob storage.

`/bucket/…` and `/devstoreaccount1/bucket/…` are the same files, in memory (`/dev/shm`).
"""

from __future__ import annotations

import hashlib
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.staging.clients import ACCOUNT, NAME
from plumbline.local.servers import reserve_port
from plumbline.schema.digest import canonical_json
from plumbline.schema.manifest import DataFile, Manifest, Shard

_CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000; keepalive_timeout 300;
  default_type application/octet-stream;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=1024; root {folder}/www;
    add_header x-ms-blob-type BlockBlob; add_header x-ms-version 2021-12-02;
  }}
}}
"""


def publish(folder: Path, shards: int, size: int) -> Manifest:
    """Write a dataset of so many random shards below `folder/www`."""
    root = folder / "www/bucket" / NAME
    (root / "train").mkdir(parents=True)
    (folder / "www" / ACCOUNT).mkdir()
    (folder / "www" / ACCOUNT / "bucket").symlink_to(folder / "www/bucket")
    rng, rows = random.Random(7), {"num_rows": 1, "rows_sha256": "0" * 64}
    base = rng.randbytes(size)

    def made(key: str, data: bytes) -> dict[str, object]:
        (root / key).write_bytes(data)
        return DataFile(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest()).to_json()

    train = [
        Shard(**made(f"train/{i:05d}.parquet", rng.randbytes(64)[:size] + base[64:]), **rows) for i in range(shards)
    ]
    manifest = Manifest(
        name=NAME, task="masked-lm", vocab_size=100, tokenizer=DataFile(**made("tokenizer.json", b"{}")),
        train=tuple(train), evaluation=(Shard(**made("evaluation.parquet", b"x"), **rows),),
    )  # fmt: skip
    (root / "manifest.json").write_bytes(canonical_json(manifest.to_json()))
    return manifest


@contextmanager
def serve(shards: int, size: int) -> Iterator[tuple[str, Path]]:
    """Serve the dataset by nginx; return its URL and folder."""
    folder = Path(tempfile.mkdtemp(prefix="plumbline-bench-", dir="/dev/shm"))
    folder.chmod(0o755)
    try:
        publish(folder, shards, size)
        port = reserve_port()
        config = folder / "nginx.conf"
        config.write_text(_CONFIG.format(folder=folder, port=port))
        server = subprocess.Popen(["nginx", "-c", str(config)], start_new_session=True)
        try:
            _await(port)
            yield f"http://127.0.0.1:{port}", folder / "www/bucket" / NAME
        finally:
            server.terminate()
            server.wait(10)
    finally:
        shutil.rmtree(folder)


def _await(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
