"""Nights with fixed verdicts, for tests of alerts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plumbline.data.stores import open_store
from plumbline.night.alerts import AlertBook, update
from plumbline.night.central import CentralStore
from plumbline.schema.suite import Alert
from plumbline.schema.verdict import Cause, Finding, Outcome, PlatformResult, RoundVerdict
from plumbline.tasks.alert import deliver_pending
from plumbline.tasks.prefect_client.notifications import Blocks
from tests.flows.small_suite import small_suite

ALERTS = (
    Alert(on=("drift", "invalid", "recovered", "missed"), block="apprise-url/hook"),
    Alert(on=("drift",), block="apprise-url/mail"),
)
NOBODY = Blocks(small_suite(Path("/nowhere")), {})
NIGHT = datetime(2026, 11, 20, 2, tzinfo=UTC)


def verdict(number: int, outcome: Outcome, code: str = "precision") -> RoundVerdict:
    causes = (Cause(code=code, sure="confirmed", why="TF32 was on"),) if outcome == "drift" else ()
    finding = Finding(check="probe.forward", outcome=outcome, observed=3e-4, limit=2e-6, unit="relative")
    azure = PlatformResult(verdict=outcome, findings=(finding,), causes=causes)
    return RoundVerdict(
        round=f"night-{number}", suite="s", verdict=outcome, platforms={"azure": azure}, report="/r/report.html"
    )


def book_of(tmp_path: Path) -> AlertBook:
    return AlertBook(CentralStore(open_store(f"file://{tmp_path}/central")), "s")


def night(
    book: AlertBook, number: int, outcome: Outcome, code: str = "precision", alerts: Sequence[Alert] = ALERTS
) -> list[str]:
    now = NIGHT + timedelta(days=number)
    book.change(lambda state: update(state, verdict(number, outcome, code), alerts, now))
    return deliver_pending(book, NOBODY, sleep=lambda _: None)
