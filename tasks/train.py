"""Train once in a process of its own, and publish the record to the platform's outbox."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_client, get_run_logger, task
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from plumbline.central import publish_record, shared_checkpoint
from plumbline.central.checkpoints import CheckpointExchange
from plumbline.dispatch import TrainingOrder
from plumbline.errors import ExitCode, PlumblineError
from plumbline.experiments.transport import fetch_bundle
from plumbline.launch import run_training
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.spec import write_spec
from plumbline.stores import RetryPolicy, Store, open_store
from tasks.events import ProgressReporter
from tasks.prefect_client.api import PREFECT_ERRORS

__all__ = ["PATIENCE", "train"]

_SPARE_SECONDS = 120.0
"""After the controller's own deadline: for a training whose controller is gone."""
_ORPHANED_SECONDS = 75.0
"""How long a round may have no controller before its training ends: a crashed one is started again at once."""
_CONTROLLER_POLL_SECONDS = 15.0
# A training's record is worth waiting for, as long as the controller's own deadline permits.
PATIENCE = RetryPolicy(attempts=100, deadline_seconds=600.0)


@task(name="train", task_run_name="{order.record_id}", persist_result=False)
def train(order: TrainingOrder) -> tuple[int, str]:
    """Train, publish the record, and leave no file; return the trainer's exit code and its last line."""
    cache = Path(os.environ.get("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser().resolve()
    work = cache / "work" / order.record_id
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    outbox = open_store(order.outbox)
    logger = get_run_logger()
    logger.info("lock %s", os.environ.get("PLUMBLINE_LOCK") or "not named (PLUMBLINE_LOCK)")
    try:
        # Around the outbox too: the controller counts a training without progress for a minute as lost.
        with ProgressReporter(logger) as progress, _orphan_watch() as is_orphaned:
            write_spec(order.spec, work / "spec.json")
            experiment = fetch_bundle(outbox, order.experiment_id, work / "experiment") if order.experiment_id else None
            with _checkpoint(order, outbox, work / "record" / "checkpoint", logger) as checkpoint:
                code = run_training(
                    work / "spec.json",
                    work / "record",
                    data=order.data,
                    cache=cache,
                    platform=order.platform,
                    record_id=order.record_id,
                    round_id=order.round_id,
                    attempt=order.attempt,
                    nonce=order.nonce,
                    expected=order.expected,
                    num_processes=order.expected.gpus,
                    experiment=experiment,
                    on_progress=progress.on_progress,
                    timeout_seconds=order.run_seconds + _SPARE_SECONDS,
                    should_stop=is_orphaned.is_set,
                )
            if (work / "record" / RECORD_NAME).is_file():
                publish_record(open_store(order.outbox, policy=PATIENCE), work / "record")
            if code == ExitCode.PASS and checkpoint is not None:
                with suppress(PlumblineError):
                    checkpoint.clear()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return code, progress.last_line


def _checkpoint(
    order: TrainingOrder, outbox: Store, folder: Path, logger: Any
) -> AbstractContextManager[CheckpointExchange | None]:
    """Share the checkpoints of `learn` with the next attempt, which another machine may run."""
    if order.spec.learn is None or order.experiment_id is not None:
        return nullcontext()
    return shared_checkpoint(outbox, order.job, folder, on_problem=logger.warning)


@contextmanager
def _orphan_watch() -> Iterator[threading.Event]:
    """Set the event once the round that dispatched this run has had no controller for a while."""
    is_orphaned, is_over = threading.Event(), threading.Event()
    parent = flow_run.parent_flow_run_id
    if parent:
        thread = threading.Thread(target=_watch_parent, args=(UUID(str(parent)), is_orphaned, is_over), daemon=True)
        thread.start()
    try:
        yield is_orphaned
    finally:
        is_over.set()


def _watch_parent(parent: UUID, is_orphaned: threading.Event, is_over: threading.Event) -> None:
    ended_at: float | None = None
    with get_client(sync_client=True) as client:
        while not is_over.wait(_CONTROLLER_POLL_SECONDS):
            try:
                state = client.read_flow_run(parent).state
            except (*PREFECT_ERRORS, ObjectNotFound):
                continue  # says nothing about the controller
            # Crashed and scheduled again: where no worker takes it, its machine is gone for good.
            is_ended = state is not None and (state.is_final() or state.is_scheduled())
            ended_at = (ended_at or time.monotonic()) if is_ended else None
            if ended_at is not None and time.monotonic() - ended_at >= _ORPHANED_SECONDS:
                is_orphaned.set()
                return
