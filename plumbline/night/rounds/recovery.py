"""Decision whether to resume a possibly crashed round. Pure."""

from __future__ import annotations

from enum import StrEnum

MAX_CRASHES = 4
"""Maximum number of crashes: of the first start, and of three that were started again."""
_REPORTED_SECONDS = 20
"""Time within which all reports of one crash arrive: a later report would end a run that was started in between."""
_START_SECONDS = 300
"""Maximum seconds from PENDING to RUNNING: the worker may have died in between."""
_SILENT_SECONDS = 120
"""Maximum seconds between two signs of life of a running controller, which gives one every 5 s."""
_UNATTENDED_SECONDS = 900
"""Maximum seconds that a crashed round waits for its next start while no worker is online."""


class Step(StrEnum):
    """Action that continues or ends a crashed round."""

    CRASH = "crash"
    RESUME = "resume"
    END = "end"


def next_step(state: str, seconds: float, crashes: int, *, is_attended: bool) -> Step | None:
    """Return the next action for a round's Prefect state, or `None`.

    `seconds` are those since the state began or the controller's last sign of life. `is_attended` is whether a worker
    for the round is online.
    """
    if state == "CRASHED" and seconds >= _REPORTED_SECONDS:
        # The start after the last one allowed reports the crashes itself, unless it crashes as well.
        return Step.END if crashes > MAX_CRASHES else Step.RESUME
    if (state == "RUNNING" and seconds >= _SILENT_SECONDS) or (state == "PENDING" and seconds >= _START_SECONDS):
        return Step.CRASH
    if state == "SCHEDULED" and crashes and seconds >= _UNATTENDED_SECONDS and not is_attended:
        return Step.END
    return None
