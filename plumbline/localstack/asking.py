"""One request to the stack's own Prefect server, asked again while the server is too busy to answer."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from plumbline.errors import UnavailableError

__all__ = ["ask"]

_ANSWER_SECONDS = 90.0
_PAUSE_SECONDS = 0.5


def ask(url: str, content: dict[str, Any], method: str = "POST") -> Any:
    """The answer, `None` if it is empty; `HTTPError` if it is a refusal, `UnavailableError` if there is none."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(content).encode(), headers=headers, method=method)  # noqa: S310 - our own server
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS / 3) as answer:  # noqa: S310 - our own server
                said = answer.read()
                return json.loads(said) if said else None
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < HTTPStatus.INTERNAL_SERVER_ERROR
            if refused:
                raise
            # On a busy machine a server that has just come up hangs, or finds its database locked: what is asked here
            # may be asked twice.
            if time.monotonic() > deadline:
                raise UnavailableError(str(error), where=url) from error
            time.sleep(_PAUSE_SECONDS)
