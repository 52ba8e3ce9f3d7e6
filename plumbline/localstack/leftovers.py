"""Runs that an earlier stack left unfinished in the database: they are over, and no worker may start them now."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

__all__ = ["end_leftovers", "ensure_pool"]

_UNFINISHED = ["SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"]
_PAGE = 200


def end_leftovers(api_url: str) -> int:
    """Mark every unfinished run as crashed; how many there were. Only for a server that nobody else uses."""
    ended = 0
    wanted = {"flow_runs": {"state": {"type": {"any_": _UNFINISHED}}}, "limit": _PAGE}
    while runs := _post(f"{api_url}/flow_runs/filter", wanted):
        for run in runs:
            state = {"type": "CRASHED", "message": "the local stack that ran it has ended"}
            _post(f"{api_url}/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
        ended += len(runs)
    return ended


def ensure_pool(api_url: str, name: str, limit: int | None = 1) -> None:
    """A process work pool, for one training at a time, before its worker asks for it."""
    known = _post(f"{api_url}/work_pools/filter", {"work_pools": {"name": {"any_": [name]}}})
    if not known:
        _post(f"{api_url}/work_pools/", {"name": name, "type": "process", "concurrency_limit": limit})


def _post(url: str, content: dict[str, Any]) -> Any:
    request = urllib.request.Request(  # noqa: S310 - our own server
        url, data=json.dumps(content).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own server
        return json.load(answer)
