"""Gathering of a round's records into the central store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prefect import task

from plumbline.central import CentralStore
from plumbline.dispatch import Result
from plumbline.rounds import Assignment, Round
from plumbline.rounds.gathered import GatheredRecords, harvest
from plumbline.stores import RetryPolicy, open_store

# Dispatch has seen the record: wait for a temporarily unreachable outbox.
PATIENCE = RetryPolicy(attempts=20, deadline_seconds=90.0)


@task(name="gather", persist_result=False, retries=2, retry_delay_seconds=5)
def gather_records(round_: Round, results: Mapping[Assignment, Result], folder: Path) -> GatheredRecords:
    """Collect all dispatched records. Idempotent, so that Prefect can retry."""
    outboxes = {name: open_store(platform.outbox, policy=PATIENCE) for name, platform in round_.suite.platforms.items()}
    return harvest(round_, results, outboxes, CentralStore(open_store(round_.suite.store)), folder)
