"""Recovery of crashed rounds, from the run's state and the stored verdict.

No event is trusted: Prefect holds events back for up to 15 minutes, and loses them with its process. Each step reads
everything again, so that it may be repeated, and may come after any gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry, Completed, Crashed, Failed

from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.night.central import CentralStore
from plumbline.night.deployment import LOST, RESUMED, ROUND_TAG, suite_tag
from plumbline.night.rounds import outcome, round_of_run
from plumbline.night.rounds.recovery import MAX_CRASHES, Step, next_step
from plumbline.schema.errors import ExitCode
from plumbline.schema.escape import escape
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.api import PAGE
from plumbline.tasks.prefect_client.flow_runs import INFRASTRUCTURE_PENDING, RunProgress, count_crashes, read_pool
from plumbline.upgrade import outcome as upgrade_outcome

STATE_NAMES = {
    ExitCode.DRIFT: "Drift",
    ExitCode.USAGE: "Misconfigured",
    ExitCode.INCONCLUSIVE: "Inconclusive",
    ExitCode.INVALID: "Invalid",
}
"""Names of the failed states of rounds and upgrades, for people and automations."""
_RECENT = timedelta(days=1)
"""Age of an end above which a round is left as it is."""


def final_state(code: ExitCode, text: str) -> State[None]:
    """Return a controller's final state, named after verdict or error kind."""
    message = escape(text, "log")
    return Completed(message=message) if code is ExitCode.PASS else Failed(name=STATE_NAMES[code], message=message)


def read_open_rounds(client: SyncPrefectClient, suite: str, now: datetime) -> list[FlowRun]:
    """Return the suite's rounds and upgrades that are running or resumable."""
    types = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    waiting = _read(client, suite, name=FlowRunFilterStateName(any_=["AwaitingRetry", "Late"]))
    return [
        *_read(client, suite, type=FlowRunFilterStateType(any_=types)),
        *(run for run in waiting if run.run_count),  # others have not begun
        *_read(client, suite, since=now - _RECENT, type=FlowRunFilterStateType(any_=[StateType.CRASHED])),
    ]


def read_failed_rounds(client: SyncPrefectClient, suite: str, now: datetime) -> list[FlowRun]:
    """Return the suite's rounds and upgrades that ended without a result."""
    return _read(client, suite, since=now - _RECENT, name=FlowRunFilterStateName(any_=["Failed", LOST]))


def _read(client: SyncPrefectClient, suite: str, *, since: datetime | None = None, **state: object) -> list[FlowRun]:
    ended = FlowRunFilterEndTime(after_=since) if since else None
    tags = FlowRunFilterTags(all_=[suite_tag(suite), ROUND_TAG])
    wanted = FlowRunFilter(tags=tags, state=FlowRunFilterState.model_validate(state), end_time=ended)
    return client.read_flow_runs(flow_run_filter=wanted, limit=PAGE)


def name_of_round(suite: Suite, run: FlowRun) -> str:
    """Return the name under which a flow run's round is stored."""
    due = run.expected_start_time or run.created or datetime.now(UTC)
    return str(run.parameters.get("round_id") or round_of_run(suite.name, str(run.id), due))


def stored_result(suite: Suite, round_id: str) -> tuple[ExitCode, str] | None:
    """Return a stored result's exit code and headline, else `None`."""
    central = CentralStore(open_store(suite.store))
    if (upgraded := upgrade_outcome.read_outcome(central, suite.name, round_id)) is not None:
        return upgraded.exit_code, upgrade_outcome.headline(upgraded)
    try:
        verdict = central.get_round(suite.name, round_id)
    except ObjectMissingError:
        return None
    return verdict.exit_code, outcome.headline(verdict)


def recover(
    client: SyncPrefectClient, suite: Suite, run: FlowRun, progress: RunProgress | None, now: datetime
) -> State | None:
    """Crash, resume or end a run if due; return the state.

    `progress` is the controller's last sign of life, `now` the server's time.
    """
    if run.state is None:
        return None
    kind = run.state.name if run.state.name == INFRASTRUCTURE_PENDING else run.state.type.value
    seconds = now.timestamp() - max(_signs_of_life(run.state, progress))
    crashes = count_crashes(run.id) if run.state.type in (StateType.CRASHED, StateType.SCHEDULED) else 0
    pool = read_pool(client, run.work_pool_name) if crashes and run.work_pool_name else None
    step = next_step(kind, seconds, crashes, is_attended=pool is not None and pool.is_online)
    if step is None:
        return None
    wanted: State = AwaitingRetry(message=RESUMED)
    if step is Step.CRASH:
        wanted = Crashed(message=f"no sign of life for {seconds:.0f} s: its machine may be gone")
    elif step is Step.END:
        wanted = _end(suite, run, f"it crashed {crashes} times, and no process continues it")
    # Only from the state that was judged: the run may have gone on meanwhile.
    latest = client.read_flow_run(run.id).state
    if latest is None or latest.id != run.state.id:
        return latest
    answer = client.set_flow_run_state(run.id, wanted).state
    if step is Step.CRASH and answer is not None and answer.is_crashed() and count_crashes(run.id) <= MAX_CRASHES:
        # No process is left to report this crash again: the round waits for no second pass.
        answer = client.set_flow_run_state(run.id, AwaitingRetry(message=RESUMED)).state
    return answer


def _signs_of_life(state: State, progress: RunProgress | None) -> Iterable[float]:
    yield state.timestamp.timestamp()
    if state.is_running() and progress is not None and progress.changed:
        yield datetime.fromisoformat(progress.changed).timestamp()


def _end(suite: Suite, run: FlowRun, why: str) -> State[None]:
    """Return the stored verdict's final state, or that of a lost round."""
    if (result := stored_result(suite, name_of_round(suite, run))) is not None:
        return final_state(*result)
    return Failed(name=LOST, message=f"{why}: see the log of the controllers' worker")
