"""Names of what a round dispatches: the same for the same round, however often its controller starts."""

from __future__ import annotations

from plumbline.digest import digest_bytes

__all__ = ["job_key", "record_id"]

_LONGEST = 63


def job_key(round_id: str, platform: str, what: str) -> str:
    """The name of one training in one round: of a workload, a rerun or an experiment."""
    return _bounded(f"{round_id}-{platform}-{what}")


def record_id(key: str, attempt: int) -> str:
    """The record that this attempt writes. Each attempt has its own, so that a late one is never taken for another."""
    return _bounded(f"{key}-{attempt}")


def _bounded(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 13]}-{digest_bytes(name.encode())[:12]}"
