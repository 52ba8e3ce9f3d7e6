"""Opening of a store by its URL."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from plumbline.errors import ConfigurationError
from plumbline.schema.store_url import kind_at, parse_store_url
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
    url = url.rstrip("/")
    try:
        address = parse_store_url(url)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    backend = import_module(kind_at(url).module).open_url(url, address, timeouts or Timeouts())
    return RetryingStore(backend, policy or RetryPolicy())
