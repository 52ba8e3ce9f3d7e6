"""Value types of a suite with extra checks: URLs and time zones."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator

from plumbline.schema.store_url import parse_store_url

__all__ = ["StoreUrl", "WebUrl", "api_key_variable", "is_time_zone", "without_credentials"]

_WEB_URL = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&*+,;=:@%/-]*)?")
_SECRET = re.compile(r"(?i)(sig|signature|key|token|secret|password|credential)s?=")


def _store_url(url: str) -> str:
    parse_store_url(url)
    return url.rstrip("/")


StoreUrl = Annotated[str, AfterValidator(_store_url)]
"""`file:///folder`, `s3://bucket/prefix`, `az://account/container/prefix` or `gs://bucket/prefix`; no credentials.

A relative `file://` URL (`file://.plumbline/central`) is resolved against the working folder.
"""


def without_credentials(url: str) -> str:
    """Return `url`; raise `ValueError`, without naming it, if it contains a password, a login or a signature.

    Only the account of an SSH address is no secret, such as `git@`.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError("is not a URL") from error
    login, _, _ = parts.netloc.rpartition("@")
    if (login and (":" in login or not parts.scheme.endswith("ssh"))) or _SECRET.search(
        f"{parts.query}&{parts.fragment}"
    ):
        raise ValueError("contains a credential; give it to the machine that reads the address, not to the address")
    return url


def _web_url(url: str) -> str:
    without_credentials(url)
    if "?" in url or "#" in url:
        raise ValueError("contains a query or a fragment")
    if not _WEB_URL.fullmatch(url):
        raise ValueError("is not a web address: http://HOST/PATH or https://HOST/PATH, without spaces or markup")
    return url.rstrip("/")


WebUrl = Annotated[str, AfterValidator(_web_url)]
"""An `http://` or `https://` address without credentials."""


def api_key_variable(platform: str) -> str:
    """Return the name of the controller's variable with the key of a platform's Prefect API."""
    return f"PLUMBLINE_API_KEY_{re.sub('[^A-Z0-9]', '_', platform.upper())}"


def is_time_zone(name: str) -> bool:
    """Return whether `name` is a time zone; true without a time zone database."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Without a database of time zones, accept any name.
        return not available_timezones()
    return True
