"""The worker's task: one training in its own process, its record to the platform's own outbox."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from prefect import get_run_logger, task

from plumbline.bundles import fetch_bundle
from plumbline.central import publish_record
from plumbline.dispatch import TrainingOrder
from plumbline.launch import run_training
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.spec import write_spec
from plumbline.stores import RetryPolicy, open_store
from tasks.heartbeat import Heartbeat

__all__ = ["PATIENCE", "train"]

# The controller ends a training that takes too long; this is for when there is no controller any more.
_AFTER_SECONDS = 120.0
# A training's record is worth waiting for, as long as the controller's own deadline lets it.
PATIENCE = RetryPolicy(attempts=100, deadline_seconds=600.0)


@task(name="train", task_run_name="{order.record_id}", persist_result=False)
def train(order: TrainingOrder) -> tuple[int, str]:
    """Train, publish whatever record there is, leave no file behind; the trainer's exit code and its last words."""
    cache = Path(os.environ.get("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser().resolve()
    work = cache / "work" / order.record_id
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    outbox = open_store(order.outbox)
    logger = get_run_logger()
    try:
        # Around the outbox too: a controller takes a training that is silent for a minute for lost.
        with Heartbeat(logger) as heartbeat:
            write_spec(order.spec, work / "spec.json")
            experiment = fetch_bundle(outbox, order.experiment_id, work / "experiment") if order.experiment_id else None
            code = run_training(
                work / "spec.json",
                work / "record",
                data=order.data,
                cache=cache,
                platform=order.platform,
                record_id=order.record_id,
                round_id=order.round_id,
                experiment=experiment,
                on_progress=heartbeat.on_progress,
                timeout_seconds=order.run_seconds + _AFTER_SECONDS,
            )
            if (work / "record" / RECORD_NAME).is_file():
                publish_record(open_store(order.outbox, policy=PATIENCE), work / "record")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return code, heartbeat.last_words
