"""Names of what a round dispatches: the same for the same round, however often its controller starts."""

from __future__ import annotations

from plumbline.digest import bounded_name

__all__ = ["job_key", "record_id"]


def job_key(round_id: str, platform: str, what: str) -> str:
    """The name of one training in one round: of a workload, a rerun or an experiment."""
    return bounded_name(f"{round_id}-{platform}-{what}")


def record_id(key: str, attempt: int) -> str:
    """The record that this attempt writes. Each attempt has its own, so that a late one is never taken for another."""
    return bounded_name(f"{key}-{attempt}")
