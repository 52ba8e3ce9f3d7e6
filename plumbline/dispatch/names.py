"""Names of a round's trainings, stable across restarts of the controller."""

from __future__ import annotations

from plumbline.digest import bounded_name


def job_key(suite: str, round_id: str, platform: str, purpose: str) -> str:
    """Return the name of a round's training, rerun or experiment."""
    return bounded_name(f"{round_id}-{suite}-{platform}-{purpose}")


def record_id(key: str, attempt: int) -> str:
    """Return the record id of an attempt; every attempt has its own."""
    return bounded_name(f"{key}-{attempt}")


def idempotency_key(suite: str, name: str) -> str:
    """Return the key by which Prefect starts one run for `name`, a record or a round of the suite.

    Prefect compares the keys of all suites. No name contains a slash, so that keys of two suites differ.
    """
    return f"{suite}/{name}"
