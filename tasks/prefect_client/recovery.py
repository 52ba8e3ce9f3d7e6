"""Recovery of crashed rounds, from the run's state and the stored verdict.

No event is trusted: Prefect holds events back for up to 15 minutes, and loses them with its process. Each step reads
everything again, so that it may be repeated, and may come after any gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial

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
from plumbline.night.alerts import AlertBook, AlertState, add_all, update
from plumbline.night.central import CentralStore
from plumbline.night.deployment import LOST, RESUMED, ROUND_TAG, suite_tag
from plumbline.night.rounds import outcome, round_of_run
from plumbline.night.rounds.recovery import MAX_CRASHES, Step, next_step
from plumbline.schema.errors import ExitCode
from plumbline.schema.escape import escape
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.tasks.prefect_client.api import PAGE
from plumbline.tasks.prefect_client.flow_runs import INFRASTRUCTURE_PENDING, RunProgress, count_crashes, read_pool
from plumbline.upgrade import outcome as upgrade_outcome
from plumbline.upgrade.outcome import UpgradeOutcome

Result = RoundVerdict | UpgradeOutcome
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


def stored_result(suite: Suite, run: str) -> Result | None:
    """Return the stored verdict or upgrade outcome of this name, else `None`."""
    central = CentralStore(open_store(suite.store))
    if (upgraded := upgrade_outcome.read_outcome(central, suite.name, run)) is not None:
        return upgraded
    try:
        return central.get_round(suite.name, run)
    except ObjectMissingError:
        return None


def end_by_result(client: SyncPrefectClient, suite: Suite, run: FlowRun, result: Result, now: datetime) -> State | None:
    """Give a run its stored result's state and alerts: its process may have ended before it stored these."""
    if isinstance(result, UpgradeOutcome):
        text, messages = upgrade_outcome.headline(result), list(upgrade_outcome.alerts_of(result))
        add: Callable[[AlertState], AlertState] = partial(add_all, messages=messages, alerts=suite.alerts, now=now)
    else:
        text = outcome.headline(result)
        add = partial(update, verdict=result, alerts=suite.alerts, now=now)
    if suite.alerts:
        AlertBook(CentralStore(open_store(suite.store)), suite.name).change(add)
    return _set_state(client, run, final_state(result.exit_code, text))


def recover(
    client: SyncPrefectClient, suite: Suite, run: FlowRun, progress: RunProgress | None, now: datetime
) -> State | None:
    """Crash, resume or end a run if due; return the state.

    `progress` is the controller's last sign of life, `now` the server's time. A run with a stored result gets that.
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
    if (result := stored_result(suite, name_of_round(suite, run))) is not None:
        return end_by_result(client, suite, run, result, now)
    wanted: State = AwaitingRetry(message=RESUMED)
    if step is Step.CRASH:
        wanted = Crashed(message=f"no sign of life for {seconds:.0f} s: its machine may be gone")
    elif step is Step.END:
        why = f"it crashed {crashes} times, and no process continues it"
        wanted = Failed(name=LOST, message=f"{why}: see the log of the controllers' worker")
    answer = _set_state(client, run, wanted)
    if step is Step.CRASH and answer is not None and answer.is_crashed() and count_crashes(run.id) <= MAX_CRASHES:
        # No process is left to report this crash again: the round waits for no second pass.
        answer = client.set_flow_run_state(run.id, AwaitingRetry(message=RESUMED)).state
    return answer


def _set_state(client: SyncPrefectClient, run: FlowRun, wanted: State) -> State | None:
    """Change the run's state only from the one that was judged: the run may have gone on meanwhile."""
    latest = client.read_flow_run(run.id).state
    if latest is None or run.state is None or latest.id != run.state.id:
        return latest
    return client.set_flow_run_state(run.id, wanted).state


def _signs_of_life(state: State, progress: RunProgress | None) -> Iterable[float]:
    yield state.timestamp.timestamp()
    if state.is_running() and progress is not None and progress.changed:
        yield datetime.fromisoformat(progress.changed).timestamp()
