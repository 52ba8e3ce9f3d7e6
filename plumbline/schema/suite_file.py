"""TOML reader of suite files, value types, and spelling suggestions."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BaseModel, Tag

from plumbline.schema.delimited import decoded
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.escape import first_of
from plumbline.schema.store_url import parse_store_url

_KEY = r"(?m)^[ \t]*([\w.\"'-]+)[ \t]*=[^\n]*?"
_TOO_LONG = re.compile(_KEY + r"\d[\d_]{4299}")
_TOO_DEEP = re.compile(_KEY + r"[\[{](?:\s*[\[{]){99}")

_WEB_URL = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&*+,;=:@%/-]*)?")
_SECRET = re.compile(r"(?i)(sig|signature|key|token|secret|password|credential)s?=")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with tuples instead of lists."""
    import tomllib  # of Python 3.11: a trainer, which may run on 3.10, reads no suite

    where, text = str(path), ""
    try:
        text = decoded(path.read_bytes())
        return {key: with_tuples(value) for key, value in tomllib.loads(text).items()}
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=where, hint="name a suite file") from error
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise ConfigurationError(f"not TOML: {error}", where=where) from error
    except ValueError as error:
        # tomllib passes this error on: Python reads no number of more than 4300 digits.
        hint = "docs/SUITE.md has every key's range"
        raise ConfigurationError(
            "a number too long to read", where=where, key=_key(_TOO_LONG, text), hint=hint
        ) from error
    except RecursionError as error:
        hint = "no key of a suite is nested so deep: docs/SUITE.md"
        raise ConfigurationError("nested too deep", where=where, key=_key(_TOO_DEEP, text), hint=hint) from error


def with_tuples(value: Any) -> Any:
    """Convert lists to tuples, as strict validation requires."""
    if isinstance(value, Mapping):
        return {key: with_tuples(content) for key, content in value.items()}
    return tuple(with_tuples(content) for content in value) if isinstance(value, list) else value


def _key(pattern: re.Pattern[str], text: str) -> str:
    """Return the key on the malformed TOML line, or ""."""
    match = pattern.search(text)
    return match[1] if match else ""


_MOST_LISTED = 12
_LONGEST = 200


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "did you mean `NAME`?" for the closest choice, or ""."""
    known = {choice.casefold(): choice for choice in choices}
    matches = get_close_matches(word.casefold()[:_LONGEST], known, n=1, cutoff=0.6)
    return f"did you mean `{known[matches[0]]}`?" if matches else ""


def suggest_or_list(word: str, choices: Sequence[str]) -> str:
    """Return a suggestion for `word`, else list the choices."""
    return did_you_mean(word, choices) or (f"one of {first_of(choices, _MOST_LISTED)}" if choices else "")


def fields_at(kind: type[BaseModel], place: Sequence[str | int]) -> tuple[str, ...]:
    """Return field names of the nested model at `place`; empty if none."""
    current: Any = kind
    for part in place:
        current = _inner(current, part)
    current = _without_none(current)
    return tuple(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else ()


def _inner(kind: Any, part: str | int) -> Any:
    """Return the value type under the key or index `part`."""
    if isinstance(part, str) and part.startswith("kind:"):  # a member of a union, by its tag
        union, *_ = get_args(kind)
        return next((get_args(each)[0] for each in get_args(union) if Tag(part) in get_args(each)[1:]), None)
    kind = _without_none(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(part))
        return field.annotation if field else None
    arguments = get_args(kind)
    if not arguments:
        return None
    origin = get_origin(kind)
    return arguments[-1] if isinstance(origin, type) and issubclass(origin, Mapping) else arguments[0]


def _without_none(kind: Any) -> Any:
    """Return `T` for a type `T | None`."""
    if get_origin(kind) in {Union, types.UnionType}:
        return next((argument for argument in get_args(kind) if argument is not type(None)), None)
    return kind


def _store_url(url: str) -> str:
    parse_store_url(url)
    return url.rstrip("/")


StoreUrl = Annotated[str, AfterValidator(_store_url)]
"""`file:///folder`, `s3://bucket/prefix`, `az://account/container/prefix` or `gs://bucket/prefix`; no credentials.

A relative `file://` URL (`file://.plumbline/central`) is resolved against the working folder.
"""


def without_credentials(url: str) -> str:
    """Return `url`; raise `ValueError` if it contains credentials.

    Only the account of an SSH address is not a secret, such as `git@`.
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


def _lock_url(url: str) -> str:
    return _web_url(url) if url.startswith("https://") else _store_url(url)


LockUrl = Annotated[str, AfterValidator(_lock_url)]
"""An `https://` address, or the URL of a store."""


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
    """Return the environment variable with a platform's Prefect API key."""
    return f"PLUMBLINE_API_KEY_{re.sub('[^A-Z0-9]', '_', platform.upper())}"


_OWNED = {
    "command": "a deployment decides what a worker runs",
    "gpus": "set the platform's own key `gpus`",
    "nodes": "set the platform's own key `nodes`",
}
"""Job variables that a suite does not set here, with the reason."""


def check_job_variables(variables: dict[str, Any]) -> dict[str, Any]:
    """Return job variables; raise `ValueError` for unsupported or non-JSON ones."""
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
    """Return why a TOML value is not valid JSON, or ""."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_no_json, value.values())), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_no_json, value)), "")
    if isinstance(value, float) and not isfinite(value):
        return f"{value} is not a number of JSON"
    is_json = value is None or isinstance(value, (str, int, float))
    return "" if is_json else "is a date or time: write it as text"


def is_time_zone(name: str) -> bool:
    """Return whether `name` is a time zone; `True` without time zone data."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Without a database of time zones, accept any name.
        return not available_timezones()
    return True
