"""Requests to a cloud's management API: JSON, a bearer token, and errors of ours."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from plumbline.errors import AccessError, ConfigurationError, UnavailableError

_SECONDS = (10.0, 60.0)
_MAX_TEXT = 300


def ask(session: Any, method: str, address: str, *, where: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request by a `requests` session; return the answer's JSON object."""
    from requests.exceptions import RequestException

    try:
        answer = session.request(method, address, json=body, timeout=_SECONDS)
    except RequestException as error:
        raise UnavailableError(f"no answer: {type(error).__name__}", where=where) from error
    text = f"HTTP {answer.status_code}: {' '.join(answer.text.split())[:_MAX_TEXT]}"
    if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise AccessError(f"refused: {text}", where=where, hint="docs/how-to/machines-for-a-round.md lists the rights")
    if answer.status_code == HTTPStatus.NOT_FOUND:
        raise ConfigurationError("does not exist", where=where, hint="check the names in the suite's `machines`")
    if HTTPStatus.BAD_REQUEST <= answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ConfigurationError(text, where=where, hint="check the group's maximum size and the quota")
    if not answer.ok:
        raise UnavailableError(text, where=where)
    found = answer.json() if answer.content else {}
    return found if isinstance(found, dict) else {}
