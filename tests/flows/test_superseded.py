"""A controller whose round a later start continues publishes nothing and sends no alert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.rounds import Round
from plumbline.night.rounds.documents import Controller, claim_round
from plumbline.schema.errors import SupersededError, UnavailableError
from plumbline.schema.suite import Alert
from plumbline.schema.verdict import Cause, PlatformResult, RoundVerdict
from plumbline.tasks.alert import alert_about_verdict, alert_without_verdict
from plumbline.tasks.report import publish, report_round
from tests.flows.stubs import suite_of

NAME = "20261123-020000-late"


@pytest.fixture
def late(tmp_path: Path) -> Round:
    """Return a round that a later start has claimed."""
    suite = suite_of(tmp_path, "late", 1).replace(alerts=[Alert(on=("drift", "missed"), block="apprise-url/late")])
    claim_round(CentralStore(open_store(suite.store)), suite.name, NAME, Controller(flow_run="a", start=2))
    return Round(NAME, suite, {})


@pytest.fixture
def central(late: Round) -> CentralStore:
    return CentralStore(open_store(late.suite.store))


def verdict() -> RoundVerdict:
    drift = PlatformResult(verdict="drift", causes=(Cause(code="loss", sure="likely", why="x"),))
    return RoundVerdict(round=NAME, suite="late", verdict="drift", platforms={"p00": drift})


def test_no_report_and_no_verdict(late: Round, central: CentralStore) -> None:
    nothing: Any = None  # is not looked at
    with pytest.raises(SupersededError):
        report_round.fn(late, verdict(), nothing, nothing)
    with pytest.raises(SupersededError):
        publish.fn(late, verdict(), nothing)
    assert central.list_rounds() == []


def test_no_alert_about_its_verdict(late: Round, central: CentralStore) -> None:
    with pytest.raises(SupersededError):
        alert_about_verdict.fn(late, verdict())
    assert central.read_document("alerts/late.json") is None


def test_no_alert_about_its_failure(late: Round, central: CentralStore) -> None:
    with pytest.raises(SupersededError), alert_without_verdict(late.suite, NAME):
        raise UnavailableError("its trainings were cancelled by the later start")
    assert central.read_document("alerts/late.json") is None
