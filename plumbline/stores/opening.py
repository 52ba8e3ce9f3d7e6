"""Opening of a store by its URL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plumbline.errors import ConfigurationError
from plumbline.schema.store_url import parse_store_url
from plumbline.stores.protocol import Store
from plumbline.stores.retry import RetryingStore, RetryPolicy
from plumbline.variables import clean_variables

__all__ = ["Timeouts", "open_store"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for a connection, and for the next bytes."""

    connect_seconds: float = 5.0
    read_seconds: float = 20.0


def open_store(url: str, *, policy: RetryPolicy | None = None, timeouts: Timeouts | None = None) -> Store:
    """Return the store at `url`, under the retry policy; credentials come from the SDK's chain.

    No request is sent yet, so a wrong bucket or credential fails at the first use.
    """
    clean_variables()
    timeouts = timeouts or Timeouts()
    return RetryingStore(_backend(url.rstrip("/"), timeouts), policy or RetryPolicy())


def _backend(url: str, timeouts: Timeouts) -> Store:
    try:
        address = parse_store_url(url)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if address.scheme == "file":
        from plumbline.stores.file import FileStore

        return FileStore(url, Path(address.prefix))
    waits = {"connect_seconds": timeouts.connect_seconds, "read_seconds": timeouts.read_seconds}
    if address.scheme == "s3":
        from plumbline.stores.s3 import S3Store

        return S3Store(url, address.bucket, address.prefix, **waits)
    if address.scheme == "gs":
        from plumbline.stores.gs import GoogleStore

        return GoogleStore(url, address.bucket, address.prefix, **waits)
    from plumbline.stores.azure import AzureStore

    return AzureStore(url, address.bucket, address.container, address.prefix, **waits)
