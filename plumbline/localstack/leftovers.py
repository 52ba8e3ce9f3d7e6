"""Runs that an earlier stack left unfinished in the database: they are over, and no worker may start them now."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from plumbline.localstack.asking import ask

__all__ = ["end_leftovers"]

_UNFINISHED = ["SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED"]
_PAGE = 200


def end_leftovers(api_url: str, before: datetime) -> int:
    """Mark every unfinished run that is older than `before` as crashed; how many there were.

    A controller may talk to the server already, so what was made since then is not touched; neither are the runs that a
    schedule has planned for later. Only for a server that nobody else uses.
    """
    left = [run for run in _unfinished(api_url) if _is_left_over(run, before)]
    for run in left:
        state = {"type": "CRASHED", "message": "the local stack that ran it has ended"}
        ask(f"{api_url}/flow_runs/{run['id']}/set_state", {"state": state, "force": True})
    return len(left)


def _unfinished(api_url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    wanted = {"flow_runs": {"state": {"type": {"any_": _UNFINISHED}}}, "limit": _PAGE, "sort": "ID_DESC"}
    while page := ask(f"{api_url}/flow_runs/filter", {**wanted, "offset": len(found)}):
        found += page
    return found


def _is_left_over(run: dict[str, Any], before: datetime) -> bool:
    planned = run["expected_start_time"]
    if run["auto_scheduled"] and planned and datetime.fromisoformat(planned) > before:
        return False
    return datetime.fromisoformat(run["created"]) < before
