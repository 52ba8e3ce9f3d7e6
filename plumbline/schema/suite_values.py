"""The values of a suite that are checked by more than their type: store URLs and time zones."""

from __future__ import annotations

import re
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator

__all__ = ["StoreUrl", "is_time_zone"]

_SCHEMES = ("file", "s3", "az", "gs")


def _store_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ValueError(f"{url!r} is no store URL: file://, s3://, az:// or gs://")
    if "@" in rest or "?" in rest or re.search(r"(?i)(sig|key|token|secret)=", rest):
        raise ValueError("carries a credential; each SDK finds its own (environment, profile, identity)")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", rest):
        raise ValueError(f"{url!r} holds a control character")
    if not rest.strip("/"):
        raise ValueError(f"{url!r} names no bucket, container or folder")
    return url.rstrip("/")


StoreUrl = Annotated[str, AfterValidator(_store_url)]
"""`file:///folder`, `s3://bucket/prefix`, `az://account/container[/prefix]` or `gs://bucket/prefix`; no credentials.

A relative `file://` URL (`file://.plumbline/central`) is held against the working folder.
"""


def is_time_zone(name: str) -> bool:
    """Whether `name` is a time zone's, as far as this machine can tell."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Without any database of time zones nothing can be said of a name.
        return not available_timezones()
    return True
