"""Distinct events for each verdict."""

from __future__ import annotations

from plumbline.night.rounds.gathered import Absence
from plumbline.night.rounds.outcome import absent_result, join, round_events
from plumbline.schema.verdict import Cause, PlatformResult, RoundVerdict


def test_a_round_emits_one_event_for_each_platform_and_one_for_itself() -> None:
    drift = PlatformResult(verdict="drift", causes=(Cause(code="loss", sure="likely", why="x"),))
    gone = absent_result(Absence("no worker"))
    platforms = {"aws": PlatformResult(verdict="pass"), "azure": join({"w": drift}), "gcp": join({"w": gone})}
    verdict = RoundVerdict(round="r1", suite="nightly", verdict="drift", platforms=platforms)
    events = round_events(verdict)
    assert [event.name for event in events] == [
        "plumbline.platform.pass", "plumbline.platform.drift", "plumbline.platform.unavailable",
        "plumbline.round.drift",
    ]  # fmt: skip
    assert events[1].resource["prefect.resource.id"] == "plumbline.platform.nightly.azure"
    assert events[1].payload["causes"] == [{"code": "loss", "sure": "likely", "workload": "w"}]
    assert events[-1].payload["platforms"] == {"aws": "pass", "azure": "drift", "gcp": "inconclusive"}
