"""Alert state: each trouble and its recovery once, also for absent platforms."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from plumbline.night.alerts import AlertState, update
from plumbline.night.rounds.gathered import Absence
from plumbline.night.rounds.outcome import absent_result, join
from plumbline.schema.suite import Alert
from plumbline.schema.verdict import Cause, CauseCode, Finding, PlatformResult, RoundVerdict, worst

ALERTS = (Alert(on=("drift", "invalid", "unavailable", "recovered"), block="slack-webhook/team"),)
NIGHT = datetime(2026, 11, 20, 2, tzinfo=UTC)

PASS = PlatformResult(verdict="pass", findings=(Finding(check="probe.forward", outcome="pass"),), records=("r",))
GONE = absent_result(Absence("no worker came online within 900 s"))
FAILED = PlatformResult(
    verdict="invalid",
    findings=(
        Finding(
            check="record.exit", outcome="invalid", metric="exit", observed="labels", limit="completed",
            detail="the candidate failed in probe: 9 is not a label from 0 to 1",
        ),
    ),
)  # fmt: skip


def drift(code: CauseCode = "precision") -> PlatformResult:
    finding = Finding(check="probe.forward", outcome="drift", observed=3e-4, limit=2e-6, unit="relative")
    cause = Cause(code=code, sure="confirmed", why="TF32 was on")
    return PlatformResult(verdict="drift", findings=(finding,), causes=(cause,), records=("r",))


class Nights:
    """One suite over several nights; `subjects` lists sent alerts."""

    def __init__(self, *, optional: bool = False) -> None:
        self.state = AlertState()
        self.optional = optional
        self.number = 0
        self.calls = 0

    def night(self, results: Mapping[str, PlatformResult], days: int = 1, **more: object) -> list[str]:
        """Apply one night of the platform azure; return the sent subjects. `more` changes the round's verdict."""
        self.number += days
        self.calls += 1
        azure = join(results).replace(optional=self.optional)
        verdict = RoundVerdict(
            round=f"night-{self.number}", suite="s", verdict=worst([azure.verdict]), platforms={"azure": azure}
        ).replace(**more)
        before = {item.id for item in self.state.pending}
        now = NIGHT + timedelta(days=self.number, seconds=self.calls)
        self.state = update(self.state, verdict, ALERTS, now)
        self.sent = [item for item in self.state.pending if item.id not in before]
        return [item.subject.removeprefix("[plumbline] s: ") for item in self.sent]


def test_a_drift_of_the_second_workload_is_not_swallowed_by_the_first() -> None:
    nights = Nights()
    assert nights.night({"bert": drift(), "mlm": PASS}) == ["drift on azure, bert: precision (confirmed)"]
    assert nights.night({"bert": drift(), "mlm": drift()}) == ["drift on azure, mlm: precision (confirmed)"]
    assert nights.night({"bert": drift(), "mlm": drift()}) == []
    assert nights.night({"bert": PASS, "mlm": drift()}) == ["azure, bert has recovered"]
    assert nights.sent[0].about == "s/azure/bert/precision"
    assert nights.night({"bert": PASS, "mlm": PASS}) == ["azure, mlm has recovered"]


def test_one_workload_reads_as_before() -> None:
    nights = Nights()
    assert nights.night({"bert": drift()}) == ["drift on azure: precision (confirmed)"]
    assert nights.sent[0].about == "s/azure"
    assert nights.night({"bert": drift("loss")}) == ["drift on azure: loss (confirmed)"]
    assert nights.night({"bert": PASS}) == ["azure has recovered"]


def test_a_dark_platform_is_told_once_reminded_of_and_its_return_is_told() -> None:
    nights = Nights()
    assert nights.night({"bert": GONE, "mlm": GONE}) == ["azure is unavailable"]
    assert "no worker came online within 900 s" in nights.sent[0].body
    assert nights.night({"bert": GONE, "mlm": GONE}) == []
    assert nights.night({"bert": GONE, "mlm": GONE}, days=7) == ["azure is unavailable"]
    assert "since 2026-11-21 02:00 UTC, round night-1" in nights.sent[0].body
    assert nights.night({"bert": PASS, "mlm": PASS}) == ["azure has recovered"]


def test_a_workload_without_a_record_is_told_by_its_name() -> None:
    nights = Nights()
    assert nights.night({"bert": PASS, "mlm": GONE}) == ["azure, mlm is unavailable"]
    assert nights.night({"bert": PASS, "mlm": PASS}) == ["azure, mlm has recovered"]


def test_an_optional_platform_may_be_dark_in_silence_and_may_not_drift_so() -> None:
    nights = Nights(optional=True)
    assert nights.night({"bert": GONE}) == []
    assert nights.night({"bert": drift()}) == ["drift on azure: precision (confirmed)"]


def test_optional_platforms_that_leave_no_quorum_are_told_on_each_night_after_a_pass() -> None:
    nights = Nights(optional=True)
    dark = {"bert": GONE}
    assert nights.night(dark, quorum_failed=True) == ["azure is unavailable"]
    assert "optional, but without it too few platforms left a record" in nights.sent[0].body
    assert nights.night(dark, quorum_failed=True) == []  # as every trouble that goes on
    assert nights.night(dark, verdict="pass") == []
    assert nights.night(dark, quorum_failed=True) == ["azure is unavailable"]
    assert nights.night({"bert": PASS}) == ["azure has recovered"]


def test_a_drift_stays_open_while_its_platform_is_dark() -> None:
    nights = Nights()
    nights.night({"bert": drift()})
    assert nights.night({"bert": GONE}) == ["azure is unavailable"]
    # It is back, and drifts as before: that is not news.
    assert nights.night({"bert": drift()}) == ["azure is available again"]
    assert "still open on azure: precision, since 2026-11-21" in nights.sent[0].body
    assert set(nights.state.open) == {"azure/bert/precision"}


def test_too_little_evidence_ends_no_drift_and_is_no_absence() -> None:
    nights = Nights()
    nights.night({"bert": drift()})
    thin = PlatformResult(verdict="inconclusive", findings=(Finding(check="learn.accuracy", outcome="inconclusive"),))
    assert nights.night({"bert": thin}) == []
    assert nights.night({"bert": PASS}) == ["azure has recovered"]


def test_an_alert_about_a_failed_training_carries_its_error() -> None:
    nights = Nights()
    assert nights.night({"bert": FAILED, "mlm": PASS}) == ["invalid on azure, bert: bert.record.exit"]
    assert "the candidate failed in probe: 9 is not a label from 0 to 1" in nights.sent[0].body


def test_the_state_of_an_earlier_release_recovers_once() -> None:
    nights = Nights()
    known = {"event": "drift", "since_round": "night-0", "since": NIGHT}
    nights.state = AlertState.model_validate({"open": {"azure/precision": known}})
    assert nights.night({"bert": PASS}) == ["azure has recovered"]
    assert nights.state.open == {}


def both(*codes: CauseCode) -> PlatformResult:
    """Return a drift with several causes."""
    return drift().replace(causes=tuple(cause for code in codes for cause in drift(code).causes))


def test_two_causes_of_one_platform_are_one_alert_and_each_end_is_told() -> None:
    nights = Nights()
    assert nights.night({"bert": both("precision", "loss")}) == [
        "drift on azure: precision (confirmed), loss (confirmed)"
    ]
    assert nights.night({"bert": both("precision", "loss", "rng")}) == ["drift on azure: rng (confirmed)"]
    assert nights.night({"bert": both("precision", "rng")}) == ["recovered on azure: loss"]
    # A reminder names all that is open.
    assert nights.night({"bert": both("precision", "rng")}, days=9) == [
        "drift on azure: precision (confirmed), rng (confirmed)"
    ]
    # An invalid record is not evidence that a cause has ended.
    assert nights.night({"bert": FAILED}) == ["invalid on azure: record.exit"]
    assert nights.night({"bert": both("rng")}) == ["recovered on azure: record.exit, precision"]
    assert nights.night({"bert": PASS}) == ["azure has recovered"]


def test_a_second_loss_of_the_same_cause_alerts_beside_the_first_one_that_is_open() -> None:
    nights, called = Nights(), drift("software").replace(called=("bert",))
    told = "drift on azure: software (confirmed)"
    assert nights.night({"bert": called}) == [told]
    assert nights.night({"bert": drift("software")}) == []
    assert nights.night({"bert": called}) == [told]
    assert nights.night({"bert": called}, days=0) == []  # a person retries the round
    assert nights.night({"bert": drift("software")}) == []


def test_the_newest_round_that_a_person_retries_is_followed_and_an_older_one_is_not() -> None:
    nights = Nights()
    assert nights.night({"bert": GONE}) == ["azure is unavailable"]
    assert nights.night({"bert": drift()}, days=0) == [
        "drift on azure: precision (confirmed)",
        "azure is available again",
    ]
    assert nights.night({"bert": PASS}, days=0) == ["azure has recovered"]
    assert nights.night({"bert": drift()}, days=0) == ["drift on azure: precision (confirmed)"]
    assert nights.night({"bert": PASS}) == ["azure has recovered"]
    assert nights.night({"bert": drift()}, days=-1) == []
    assert nights.state.open == {}
