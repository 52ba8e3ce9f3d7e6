"""Runs that an earlier stack left unfinished in the database: they are over, and no worker may start them now."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from datetime import datetime
from http import HTTPStatus
from typing import Any

from plumbline.errors import UnavailableError

__all__ = ["end_leftovers", "ensure_pool"]

_UNFINISHED = ["SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"]
_PAGE = 200
_ANSWER_SECONDS = 90.0
_PAUSE_SECONDS = 0.5


def end_leftovers(api_url: str, before: datetime) -> int:
    """Mark every unfinished run that is older than `before` as crashed; how many there were.

    A controller may talk to the server already, so what was made since then is not touched; neither are the runs that a
    schedule has planned for later. Only for a server that nobody else uses.
    """
    left = [run for run in _unfinished(api_url) if _is_left_over(run, before)]
    for run in left:
        state = {"type": "CRASHED", "message": "the local stack that ran it has ended"}
        _post(f"{api_url}/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    return len(left)


def _unfinished(api_url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    wanted = {"flow_runs": {"state": {"type": {"any_": _UNFINISHED}}}, "limit": _PAGE, "sort": "ID_DESC"}
    while page := _post(f"{api_url}/flow_runs/filter", {**wanted, "offset": len(found)}):
        found += page
    return found


def _is_left_over(run: dict[str, Any], before: datetime) -> bool:
    planned = run["expected_start_time"]
    if run["auto_scheduled"] and planned and datetime.fromisoformat(planned) > before:
        return False
    return datetime.fromisoformat(run["created"]) < before


def ensure_pool(api_url: str, name: str, limit: int | None = 1) -> None:
    """A process work pool, for one training at a time, before its worker asks for it."""
    try:
        _post(f"{api_url}/work_pools/", {"name": name, "type": "process", "concurrency_limit": limit})
    except urllib.error.HTTPError as error:
        # It is there, from an earlier stack, or because the controller deployed first; its limit is the controller's.
        if error.code != HTTPStatus.CONFLICT:
            raise


def _post(url: str, content: dict[str, Any]) -> Any:
    request = urllib.request.Request(  # noqa: S310 - our own server
        url, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS / 3) as answer:  # noqa: S310 - our own server
                return json.load(answer)
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < HTTPStatus.INTERNAL_SERVER_ERROR
            if refused:
                raise
            # On a busy machine a server that has just come up hangs, or finds its database locked: what is asked here
            # may be asked twice.
            if time.monotonic() > deadline:
                raise UnavailableError(str(error), where=url) from error
            time.sleep(_PAUSE_SECONDS)
