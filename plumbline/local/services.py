"""Commands, environments, secrets and readiness checks of local servers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

from plumbline.environments.python_modules import module_command
from plumbline.local.azurite import install_azurite, node_binary
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.schema.extras import require, require_version

_HOST = "127.0.0.1"
# Azurite's well-known account, with a key of the stack.
_ACCOUNT = "devstoreaccount1"

LOGIN_NAME = "login"
"""File in the state folder with the login, as PREFECT_API_AUTH_STRING expects it."""
S3_KEY = "PLUMBLINE_S3_KEY"


@dataclass(frozen=True, slots=True)
class StackSecrets:
    """Random passwords and keys that protect the local servers.

    The login stays the same for one state folder, so that a browser can remember it.
    """

    login: str
    s3: str = field(default_factory=lambda: secrets.token_hex(10).upper())
    """Access key, which S3's signatures name."""
    blob: str = field(default_factory=lambda: base64.b64encode(secrets.token_bytes(64)).decode())


def read_login(state: Path) -> str:
    """Read or create the Prefect server's login in the state folder."""
    path = state / LOGIN_NAME
    if not path.is_file():
        path.touch(mode=0o600)
        path.write_text(f"plumbline:{secrets.token_urlsafe(24)}\n", encoding="ascii")
    path.chmod(0o600)
    return path.read_text(encoding="ascii").strip()


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses and access keys of the local object stores."""

    s3: str
    blob: str
    secrets: StackSecrets


def prefect_server_command(port: int) -> list[str]:
    """Return the command that starts the stock Prefect server."""
    require_version("prefect")
    return [*module_command(sys.executable, "prefect"), "server", "start", "--host", _HOST, "--port", str(port)]


def moto_command(port: int) -> list[str]:
    """Return the in-memory S3 server's command, with its key in `S3_KEY`."""
    require("moto")
    return [*module_command(sys.executable, "plumbline.local.s3_endpoint"), str(port)]


def azurite_command(port: int) -> list[str]:
    """Return the command of the in-memory Azure Blob server."""
    options = ["--blobHost", _HOST, "--blobPort", str(port)]
    command = [node_binary("node"), str(install_azurite())]
    return [*command, *options, "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]


def worker_command(pool: str, name: str, limit: int | None = 1) -> list[str]:
    """Return the command of a Prefect process worker with `limit` concurrent runs.

    A worker of controllers has no limit: with one, Prefect 3.8.8's worker ends with an error when a crashed run is
    scheduled again while its limiter still holds the slot; the deployment's own limit keeps rounds apart.
    """
    options = ["--pool", pool, "--name", name, "--type", "process"]
    bound = [] if limit is None else ["--limit", str(limit)]
    return [*module_command(sys.executable, "prefect"), "worker", "start", *options, *bound]


def store_secrets(secrets: StackSecrets) -> dict[str, str]:
    """Return the environment variables with the store servers' keys."""
    return {S3_KEY: secrets.s3, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{secrets.blob}"}


def prefect_environment(api_url: str, home: Path, login: str) -> dict[str, str]:
    """Return the environment variables for the stack's Prefect processes."""
    return {
        "PREFECT_API_AUTH_STRING": login,
        "DO_NOT_TRACK": "1",
        "PREFECT_API_URL": api_url,
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "PREFECT_HOME": str(home),
        "PREFECT_LOGGING_COLORS": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }


def cloud_environment(url: str, endpoints: Endpoints) -> dict[str, str]:
    """Return credentials for the store at `url`, excluding other clouds'."""
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        return {
            "AWS_ACCESS_KEY_ID": endpoints.secrets.s3,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": endpoints.s3,
            "AWS_SECRET_ACCESS_KEY": "plumbline",
        }
    if scheme == "az":
        account = f"AccountName={_ACCOUNT};AccountKey={endpoints.secrets.blob}"
        endpoint = f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={endpoints.blob}/{_ACCOUNT};"
        return {"AZURE_STORAGE_CONNECTION_STRING": endpoint}
    if scheme == "file":
        return {}
    raise ConfigurationError(f"the local stack has no {scheme}:// endpoint", where=url, hint="use s3, az or file")


def answers(url: str) -> bool:
    """Return whether an HTTP server responds, with any status."""
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own http address
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def create_bucket(url: str, endpoints: Endpoints) -> None:
    """Create the bucket or container at `url`; do nothing for files."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        scope = f"{endpoints.secrets.s3}/20260101/us-east-1/s3/aws4_request"
        _put(f"{endpoints.s3}/{parts.netloc}", {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}"})
    elif parts.scheme == "az":
        container = parts.path.strip("/").split("/")[0]
        _put(f"{endpoints.blob}/{_ACCOUNT}/{container}?restype=container", _signed(container, endpoints.secrets.blob))


def _put(url: str, headers: dict[str, str]) -> None:
    request = urllib.request.Request(url, method="PUT", headers={"Content-Length": "0", **headers})  # noqa: S310 - as above
    try:
        with urllib.request.urlopen(request, timeout=60):  # noqa: S310 - our own http address
            return
    except urllib.error.HTTPError as error:
        if error.code != 409:  # it is there already
            raise UnavailableError(f"cannot be created: HTTP {error.code}", where=url) from error
    except OSError as error:
        raise UnavailableError(f"cannot be created: {error}", where=url) from error


def _signed(container: str, key: str) -> dict[str, str]:
    """Return Shared Key headers to create a container, without an SDK."""
    date = formatdate(usegmt=True)
    version = "2021-12-02"
    canonical = f"x-ms-date:{date}\nx-ms-version:{version}\n/{_ACCOUNT}/{_ACCOUNT}/{container}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical
    signature = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return {
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}",
        "x-ms-date": date,
        "x-ms-version": version,
    }


def inherited() -> dict[str, str]:
    """Return this environment without variables for the user's servers or clouds."""
    private = ("PREFECT_", "AWS_", "AZURE_", "GOOGLE_")
    return {key: value for key, value in os.environ.items() if not key.startswith(private)}
