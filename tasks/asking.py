"""Ask the workers of the platforms to look around where they run: one flow run in each pool, all at once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from plumbline.schema.suite import Suite
from tasks.making import start_examination

__all__ = ["Answer", "ask_workers"]

_POLL_SECONDS = 0.5
_LOOK_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker said, or why it did not; `asked` and `answered` are our clock's, close around its words."""

    words: str
    why: str
    mend: str
    asked: datetime
    answered: datetime


def ask_workers(suite: Suite, names: Iterable[str]) -> dict[str, Answer]:
    """The report of each platform's worker, by whoever takes the run; a run that nobody takes in time is cancelled."""
    answers: dict[str, Answer] = {}
    runs: dict[str, UUID] = {}
    with get_client(sync_client=True) as client:
        for name in names:
            try:
                runs[name] = start_examination(client, suite, name)
            except ObjectNotFound:
                answers[name] = _silent(f"training/{suite.name}-{name} is not deployed", "`plumbline deploy SUITE`")
        began, asked = time.monotonic(), dict.fromkeys(runs, datetime.now(UTC))
        while left := runs.keys() - answers.keys():
            for name in left:
                run = client.read_flow_run(runs[name])
                seconds = suite.platforms[name].start_seconds + _LOOK_SECONDS
                if run.state and run.state.is_final():
                    answers[name] = _answer(run.state, asked[name])
                elif time.monotonic() - began > seconds:
                    client.set_flow_run_state(run.id, Cancelled(), force=True)
                    mend = f"does another run hold {suite.platforms[name].work_pool}? its worker's log tells"
                    answers[name] = _silent(f"did not answer in {seconds:g} s", mend)
                elif not (run.state and run.state.is_running()):
                    asked[name] = datetime.now(UTC)
            time.sleep(_POLL_SECONDS)
    return answers


def _answer(state: State, asked: datetime) -> Answer:
    if state.is_completed() and state.message:
        return Answer(state.message, "", "", asked, datetime.now(UTC))
    return _silent(f"{state.name}: {state.message}", "its worker's log tells")


def _silent(why: str, mend: str) -> Answer:
    now = datetime.now(UTC)
    return Answer("", why, mend, now, now)
