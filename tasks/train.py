"""Training in its own process, with its record published to the outbox."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import get_run_logger, task
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from plumbline.data.staging.part import disk_errors
from plumbline.data.staging.scratch import scratch_folder, sweep_workspaces
from plumbline.data.stores import Store, open_store
from plumbline.environments.installed import keep_lock
from plumbline.environments.launch import run_training
from plumbline.environments.nodes import own_node
from plumbline.night.central import publish_record, shared_checkpoint, upload_policy
from plumbline.night.central.outbox import CheckpointExchange
from plumbline.night.dispatch import TrainingOrder
from plumbline.night.experiments.transport import fetch_bundle
from plumbline.schema.captured import write_any_spec
from plumbline.schema.errors import AccessError, ConfigurationError, ExitCode, InvalidInputError, PlumblineError
from plumbline.schema.experiment import AbOrder
from plumbline.schema.record import RECORD_NAME, read_record
from plumbline.schema.variables import variable
from plumbline.tasks.events import ProgressReporter
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS, open_client

if TYPE_CHECKING:
    from plumbline.night.experiments.ab import Interpreters


_SPARE_SECONDS = 120.0
"""Seconds after the controller's deadline, for a training without a controller."""
_ORPHANED_SECONDS = 75.0
"""Seconds without a controller before a training ends; crashed controllers restart at once."""
_CONTROLLER_POLL_SECONDS = 15.0


@task(name="train", task_run_name="{order.record_id}", persist_result=False)
def train_and_publish(order: TrainingOrder) -> tuple[int, str]:
    """Train and publish the record; return exit code and error."""
    began = time.monotonic()
    cache = cache_folder()
    outbox = open_store(order.outbox)
    logger = get_run_logger()
    sweep_workspaces()
    _keep_lock(cache, logger)
    # Around the upload too: the controller treats a training without progress for a minute as lost.
    with (
        work_folder(cache, order.record_id) as work, ProgressReporter(logger) as progress,
        orphan_watch() as is_orphaned,
    ):  # fmt: skip
        with shared_learning(order, outbox, work, logger) as checkpoint:
            code, record = train_ordered(order, outbox, work, progress.on_progress, is_orphaned.is_set)
        why = progress.last_line
        if record is not None and (record / RECORD_NAME).is_file():
            why = read_record(record, verify=False).exit.message or why
            policy = upload_policy(time.monotonic() - began)
            publish_record(open_store(order.outbox, policy=policy), record)
        if code == ExitCode.PASS and checkpoint is not None:
            _clear(checkpoint, logger)
    return code, why


def cache_folder() -> Path:
    """Return this machine's cache folder."""
    return Path(variable("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser().resolve()


def train_ordered(
    order: TrainingOrder, outbox: Store, work: Path, on_progress: Callable[[dict[str, Any]], None],
    should_stop: Callable[[], bool],
) -> tuple[int, Path | None]:  # fmt: skip
    """Run an ordered training; return exit code and record folder."""
    cache = cache_folder()
    with disk_errors(cache):
        write_any_spec(order.spec, work / "spec.json")
    experiment = fetch_bundle(outbox, order.experiment_id, work / "experiment") if order.experiment_id else None

    def run(out: Path, python: Path | None = None) -> int:
        try:
            return run_training(
                work / "spec.json",
                out,
                data=order.data,
                cache=cache,
                platform=order.platform,
                record_id=order.record_id,
                round_id=order.round_id,
                attempt=order.attempt,
                nonce=order.nonce,
                expected=order.expected,
                num_processes=order.expected.gpus,
                nodes=own_node(order.expected.nodes),
                experiment=experiment,
                python=python,
                trainer=order.python,
                on_progress=on_progress,
                timeout_seconds=order.run_seconds + _SPARE_SECONDS,
                should_stop=should_stop,
            )
        except (ConfigurationError, InvalidInputError) as error:
            # An environment that cannot train, or data that is wrong: what the trainer would have said.
            on_progress({"event": "said", "line": str(error)})
            is_refused = isinstance(error, AccessError)  # the next attempt reads the credentials again
            return int(ExitCode.INCONCLUSIVE if is_refused else error.exit_code)

    if order.ab is not None:
        return _run_ab(order.ab, cache, work, run)
    return run(work / "record"), work / "record"


def _keep_lock(cache: Path, logger: Any) -> None:
    """Store this environment's lock for later A/B tests."""
    lock = variable("PLUMBLINE_LOCK")
    logger.info("lock %s", lock or "not named (PLUMBLINE_LOCK)")
    if lock:
        try:
            with disk_errors(cache):
                keep_lock(cache / "upgrade", Path(lock))
        except PlumblineError as error:
            logger.warning("lock not kept for an A/B: %s", error)


@contextmanager
def work_folder(cache: Path, record_id: str) -> Iterator[Path]:
    """Yield a training's folder in the cache; remove those of killed trainings."""
    with ExitStack() as stack:
        with disk_errors(cache):
            (cache / "work").mkdir(parents=True, exist_ok=True)
            work = stack.enter_context(scratch_folder(f"{record_id}-", cache / "work"))
        yield work


def _run_ab(
    order: AbOrder, cache: Path, work: Path, run: Callable[[Path, Path | None], int]
) -> tuple[int, Path | None]:
    """Run an A/B test: alternate between tonight's and the baseline's environment."""
    # Imported for an A/B only, so that other trainings start faster.
    from plumbline.night.experiments.ab import build_environments, run_ab

    def train(environments: Interpreters | None, is_tonight: bool, out: Path) -> int:
        if environments is None:
            return run(out, None)
        return run(out, environments.tonight if is_tonight else environments.baseline)

    return run_ab(order, lambda wanted: build_environments(wanted, cache / "upgrade"), train, work / "ab")


def shared_learning(
    order: TrainingOrder, outbox: Store, work: Path, logger: Any
) -> AbstractContextManager[CheckpointExchange | None]:
    """Share the learning run's checkpoints with the next attempt."""
    if order.spec.learn is None or order.experiment_id is not None or order.ab is not None:
        return nullcontext()
    return shared_checkpoint(outbox, order.job, work / "record" / "checkpoint", on_problem=logger.warning)


def _clear(checkpoint: CheckpointExchange, logger: Any) -> None:
    """Delete the stored checkpoints; only log failures."""
    try:
        checkpoint.clear()
    except PlumblineError as error:
        logger.warning("checkpoint: not emptied: %s", error)


@contextmanager
def orphan_watch(run_id: str = "") -> Iterator[threading.Event]:
    """Yield an event that is set once the controlling flow run ends."""
    is_orphaned, is_over = threading.Event(), threading.Event()
    parent = run_id or flow_run.parent_flow_run_id
    if parent:
        thread = threading.Thread(target=_watch_parent, args=(UUID(str(parent)), is_orphaned, is_over), daemon=True)
        thread.start()
    try:
        yield is_orphaned
    finally:
        is_over.set()


def _watch_parent(parent: UUID, is_orphaned: threading.Event, is_over: threading.Event) -> None:
    ended_at: float | None = None
    with open_client() as client:
        while not is_over.wait(_CONTROLLER_POLL_SECONDS):
            try:
                state = client.read_flow_run(parent).state
            except (*PREFECT_ERRORS, ObjectNotFound):
                continue  # not a sign of the controller's end
            # Crashed and scheduled again: if no worker claims it, its machine is lost.
            is_ended = state is not None and (state.is_final() or state.is_scheduled())
            ended_at = (ended_at or time.monotonic()) if is_ended else None
            if ended_at is not None and time.monotonic() - ended_at >= _ORPHANED_SECONDS:
                is_orphaned.set()
                return
