"""From a store's URL to the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plumbline.errors import ConfigurationError
from plumbline.stores.base import Store
from plumbline.stores.retry import RetryingStore, RetryPolicy

__all__ = ["Timeouts", "open_store"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long one connection may take, and one wait for the next bytes."""

    connect_seconds: float = 5.0
    read_seconds: float = 20.0


def open_store(url: str, *, policy: RetryPolicy | None = None, timeouts: Timeouts | None = None) -> Store:
    """The store at `url`, with the retry policy above it; credentials come from the SDK's own chain.

    Nothing is asked of the network yet, so a wrong bucket or credential shows at the first use.
    """
    timeouts = timeouts or Timeouts()
    return RetryingStore(_backend(url.rstrip("/"), timeouts), policy or RetryPolicy())


def _backend(url: str, timeouts: Timeouts) -> Store:
    scheme, separator, rest = url.partition("://")
    if not separator or not rest.strip("/"):
        raise ConfigurationError(f"{url!r} is no store URL", mend="file://FOLDER, s3://, az:// or gs://")
    if "@" in rest.split("/", 1)[0] or "?" in rest:
        raise ConfigurationError(f"a {scheme}:// URL carries a credential or a query", mend="leave both out")
    if scheme == "file":
        from plumbline.stores.file import FileStore

        return FileStore(url, Path(rest))
    bucket, _, prefix = rest.partition("/")
    if scheme == "s3":
        from plumbline.stores.s3 import S3Store

        return S3Store(url, bucket, prefix, timeouts.connect_seconds, timeouts.read_seconds)
    if scheme == "gs":
        from plumbline.stores.gs import GoogleStore

        return GoogleStore(url, bucket, prefix, timeouts.connect_seconds, timeouts.read_seconds)
    if scheme == "az":
        from plumbline.stores.azure import AzureStore

        container, _, prefix = prefix.partition("/")
        if not container:
            raise ConfigurationError("names no container", where=url, mend="az://ACCOUNT/CONTAINER/PREFIX")
        waits = {"connect_seconds": timeouts.connect_seconds, "read_seconds": timeouts.read_seconds}
        return AzureStore(url, bucket, container, prefix, **waits)
    raise ConfigurationError(f"unknown kind of store {scheme!r}", where=url, mend="file, s3, az or gs")
