"""Open stores by URL, and create links to their objects."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, runtime_checkable

from plumbline.data.stores.protocol import Store
from plumbline.data.stores.retry import RetryingStore, RetryPolicy, backend_errors
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.store_url import kind_at, parse_store_url
from plumbline.schema.variables import clean_variables


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds: to connect, and between bytes."""

    connect_seconds: float = 5.0
    read_seconds: float = 20.0


def open_store(url: str, *, policy: RetryPolicy | None = None, timeouts: Timeouts | None = None) -> Store:
    """Open the store at `url`, with retries. Credentials come from the SDK's chain.

    No request is sent yet, so a wrong bucket or credential fails at the first use.
    """
    clean_variables()
    url = url.rstrip("/")
    try:
        address = parse_store_url(url)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    backend = import_module(kind_at(url).module).open_url(url, address, timeouts or Timeouts())
    return RetryingStore(backend, policy or RetryPolicy())


LONGEST_SECONDS = 7 * 24 * 3600
"""Maximum lifetime on S3, Azure (with an identity) and Google, in seconds."""


@runtime_checkable
class _Signer(Protocol):
    def presign(self, key: str, seconds: int) -> str: ...


def presign(store: Store, key: str, seconds: int = LONGEST_SECONDS) -> str | None:
    """Return a temporary link to an object; `None` if the store cannot.

    With temporary credentials the link ends with them, whatever `seconds` says.

    Raises:
        AccessError: if the credentials of this environment cannot sign.
    """
    inner = store.inner if isinstance(store, RetryingStore) else store
    with backend_errors(store.url):
        return inner.presign(key, seconds) if isinstance(inner, _Signer) else None
