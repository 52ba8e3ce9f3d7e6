"""Value types of a suite with extra checks: URLs and time zones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator

from plumbline.schema.store_url import parse_store_url

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


_GROUPS = {
    "aws": (r"aws://[a-z0-9-]+/[\w.-]+", "aws://REGION/AUTO-SCALING-GROUP"),
    "azure": (r"azure://[0-9a-fA-F-]{36}/[\w.()-]+/[\w.-]+", "azure://SUBSCRIPTION/RESOURCE-GROUP/SCALE-SET"),
    "gcp": (r"gcp://[a-z0-9.:-]+/[a-z0-9-]+/[a-z0-9-]+", "gcp://PROJECT/ZONE/INSTANCE-GROUP"),
}


def _machine_group(url: str) -> str:
    pattern, form = _GROUPS.get(url.partition("://")[0], ("", " or ".join(form for _, form in _GROUPS.values())))
    if not pattern or not re.fullmatch(pattern, url):
        raise ValueError(f"is not a group of machines: {form}")
    return url


MachineGroupUrl = Annotated[str, AfterValidator(_machine_group)]
"""`aws://REGION/NAME`, `azure://SUBSCRIPTION/RESOURCE-GROUP/NAME` or `gcp://PROJECT/ZONE/NAME`."""


def api_key_variable(platform: str) -> str:
    """Return the name of the controller's variable with the key of a platform's Prefect API."""
    return f"PLUMBLINE_API_KEY_{re.sub('[^A-Z0-9]', '_', platform.upper())}"


_OWNED = {
    "command": "a deployment decides what a worker runs",
    "gpus": "set the platform's own key `gpus`",
    "nodes": "set the platform's own key `nodes`",
}
"""Job variables that a suite does not set here, with the reason."""


def check_job_variables(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the job variables; raise `ValueError` for one that has no meaning here, or that JSON cannot carry."""
    for name, value in variables.items():
        if name in _OWNED:
            raise ValueError(f"{name}: {_OWNED[name]}")
        if problem := _no_json(value):
            raise ValueError(f"{name}: {problem}")
    environment = variables.get("env", {})
    if not isinstance(environment, Mapping) or not all(isinstance(value, str) for value in environment.values()):
        raise ValueError("env: is a table of texts")
    return variables


def _no_json(value: Any) -> str:
    """Return why a value of TOML is none of JSON; "" if it is one."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_no_json, value.values())), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_no_json, value)), "")
    if isinstance(value, float) and not isfinite(value):
        return f"{value} is not a number of JSON"
    is_json = value is None or isinstance(value, (str, int, float))
    return "" if is_json else "is a date or time: write it as text"


def is_time_zone(name: str) -> bool:
    """Return whether `name` is a time zone; true without a time zone database."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Without a database of time zones, accept any name.
        return not available_timezones()
    return True
