"""Names of a round's trainings, stable across restarts of the controller."""

from __future__ import annotations

from plumbline.digest import bounded_name

__all__ = ["job_key", "record_id"]


def job_key(round_id: str, platform: str, purpose: str) -> str:
    """Return the name of a round's training, rerun or experiment."""
    return bounded_name(f"{round_id}-{platform}-{purpose}")


def record_id(key: str, attempt: int) -> str:
    """Return the record id of an attempt; every attempt has its own."""
    return bounded_name(f"{key}-{attempt}")
