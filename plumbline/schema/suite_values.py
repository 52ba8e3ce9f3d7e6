"""Value types of a suite with extra checks: URLs and time zones."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator

from plumbline.schema.store_url import parse_store_url

__all__ = ["StoreUrl", "WebUrl", "is_time_zone"]


def _store_url(url: str) -> str:
    parse_store_url(url)
    return url.rstrip("/")


StoreUrl = Annotated[str, AfterValidator(_store_url)]
"""`file:///folder`, `s3://bucket/prefix`, `az://account/container/prefix` or `gs://bucket/prefix`; no credentials.

A relative `file://` URL (`file://.plumbline/central`) is resolved against the working folder.
"""


def _web_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a web address: http:// or https://")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("carries a credential, a query or a fragment")
    return url.rstrip("/")


WebUrl = Annotated[str, AfterValidator(_web_url)]
"""An `http://` or `https://` address without credentials."""


def is_time_zone(name: str) -> bool:
    """Return whether `name` is a time zone; true without a time zone database."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Without a database of time zones, accept any name.
        return not available_timezones()
    return True
