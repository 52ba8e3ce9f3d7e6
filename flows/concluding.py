"""What a round does once its trainings have ended: gather, judge, confirm, report, tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.dispatch import Result
from plumbline.rounds import Assignment, Round
from plumbline.rounds.harvest import Harvest
from plumbline.rounds.outcome import headline
from plumbline.schema.verdict import RoundVerdict
from tasks.alerting import alert
from tasks.confirming import confirm_causes, confirm_speed
from tasks.gathering import gather_records
from tasks.judging import Judged, conclude, judge
from tasks.reporting import publish, report, show_in_ui
from tasks.telling import Phases

__all__ = ["Concluded", "conclude_round", "tell_round"]


@dataclass(frozen=True, slots=True)
class Concluded:
    """The round's verdict, and what it rests on."""

    verdict: RoundVerdict
    found: Harvest
    judged: Judged


def conclude_round(this: Round, results: Mapping[Assignment, Result], folder: Path, phase: Phases) -> Concluded:
    """From how each training ended to the verdict and its report."""
    with phase("gathering"):
        found = gather_records(this, results, folder)
    with phase("judging"):
        judged = judge(this, found, folder)
    with phase("confirming"):
        found, judged = confirm_speed(this, found, judged, folder)
        judged = confirm_causes(this, found, judged, folder)
    verdict = conclude(this, judged, phase.timings)
    with phase("reporting"):
        verdict = report(this, verdict, found, judged)
        publish(this, verdict)
    return Concluded(verdict, found, judged)


def tell_round(this: Round, concluded: Concluded, phase: Phases) -> State[None]:
    """Alert who has to be told; the flow run's state, which is COMPLETED only for a pass."""
    verdict, found, judged = concluded.verdict, concluded.found, concluded.judged
    with phase("telling"):
        if failures := alert(this, verdict):
            verdict = report(this, verdict.replace(notes=(*verdict.notes, *failures)), found, judged)
            publish(this, verdict)
        show_in_ui(this, verdict, found, judged, return_state=True)  # if it fails, the verdict stands all the same
    message = headline(verdict)
    return Completed(message=message) if verdict.verdict == "pass" else Failed(message=message)
