"""Text of alerts, word by word: it is all that a person on call sees."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from plumbline.night.alerts import AlertMessage, no_verdict_message, probe_message
from plumbline.night.alerts.messages import missed_message, recovery_message, trouble_message
from plumbline.night.alerts.troubles import Trouble
from plumbline.night.deployment import desired
from plumbline.schema.fact import fact
from plumbline.schema.suite import Alert
from plumbline.schema.verdict import Cause, Finding, PlatformResult, RoundVerdict
from tests.flows.small_suite import small_suite

SINCE = datetime(2026, 11, 19, 2, 30, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 4
LINKS = {"report": "https://report", "report_note": "until Friday", "flow_run": "https://run"}


def verdict_of(result: PlatformResult, **links: str) -> RoundVerdict:
    return RoundVerdict(round="night-2", suite="s", verdict=result.verdict, platforms={"azure": result}, **links)


def message_about(verdict: RoundVerdict, trouble: Trouble, *, since_round: str = "night-2") -> AlertMessage:
    return trouble_message(verdict, [replace(trouble, since_round=since_round, since=SINCE)])


def finding(number: int, workload: str = "bert", **changes: object) -> Finding:
    content = {"check": f"check-{number}", "outcome": "drift", "workload": workload, **changes}
    return Finding.model_validate(content)


TWO = {"bert": "drift", "mlm": "pass"}


def test_a_drift_shows_cause_evidence_and_worst_findings_of_its_workload() -> None:
    result = PlatformResult(
        verdict="drift",
        workloads=TWO,
        causes=(
            Cause(code="precision", sure="likely", why="of the other workload", workload="mlm"),
            Cause(code="loss", sure="likely", why="not this cause", workload="bert"),
            Cause(code="precision", sure="confirmed", why="TF32", evidence=tuple("abcd"), workload="bert"),
        ),
        findings=(
            finding(0, outcome="pass"),
            finding(1, workload="mlm"),
            finding(1, workload="albert"),
            finding(2, observed=3e-4, limit=2e-6, unit="relative", against="platform aws", detail="at step 3"),
            finding(3, observed=DIGEST, limit=DIGEST[::-1]),
            finding(4, observed=DIGEST + "0"),
            finding(5),
        ),
    )
    message = message_about(
        verdict_of(result, **LINKS),
        Trouble("azure", "bert", "precision", "drift"),
        since_round="night-1",
    )
    assert message.subject == "[plumbline] s: drift on azure, bert: precision (confirmed)"
    assert message.body.splitlines() == [
        "precision, confirmed: TF32",
        "  a",
        "  b",
        "  c",
        "check-2: 3.00e-4 relative, the limit is 2.00e-6, against platform aws: at step 3",
        "check-3: 0123456789ab..., expected fedcba987654...",
        f"check-4: {DIGEST}0",
        "since 2026-11-19 02:30 UTC, round night-1",
        "round: night-2",
        "report: https://report",
        "note: until Friday",
        "run: https://run",
    ]
    assert (message.id.rpartition("/")[0], message.event) == ("night-2/azure/drift", "drift")
    assert message.about == "s/azure"


def test_no_text_of_the_data_is_sent_to_a_receiver() -> None:
    place, text = fact("data.row-place", place="reviews.csv, line 17"), fact("data.row-text", text="I am Jane Doe")
    row = fact("data.row", row=7, place=place, text=text)
    result = PlatformResult(
        verdict="drift", causes=(Cause(code="data.content", sure="likely", why="w", evidence=("rows", row)),)
    )
    body = message_about(verdict_of(result), Trouble("azure", "", "data.content", "drift")).body
    assert "row 7 is reviews.csv, line 17" in body
    assert "Jane" not in body


def test_a_new_failed_check_without_a_cause_is_named_and_its_message_has_no_empty_links() -> None:
    result = PlatformResult(verdict="drift", workloads={"bert": "drift"}, findings=(finding(1),))
    message = message_about(verdict_of(result), Trouble("azure", "bert", "check-1", "drift"))
    assert message.subject == "[plumbline] s: drift on azure: check-1"
    assert message.body.splitlines() == ["check-1", "new in this round", "round: night-2"]
    assert message.about == "s/azure"
    message = message_about(verdict_of(result.replace(workloads={})), Trouble("azure", "bert", "check-1", "drift"))
    assert (message.about, message.subject) == ("s/azure", "[plumbline] s: drift on azure: check-1")


def test_a_number_of_less_than_a_digest_is_shown_in_full_and_an_invalid_record_shows_no_drift() -> None:
    findings = (finding(1, detail="a drift"), finding(2, outcome="invalid", observed=DIGEST[:-1]))
    result = PlatformResult(verdict="invalid", workloads={"bert": "invalid"}, findings=findings)
    message = message_about(verdict_of(result), Trouble("azure", "bert", "check-2", "invalid"))
    assert message.body.splitlines()[:2] == [f"check-2: {DIGEST[:-1]}", "new in this round"]


def test_a_trouble_of_an_earlier_round_is_not_called_new_whatever_the_rounds_are_called() -> None:
    result = PlatformResult(verdict="drift", workloads={"bert": "drift"}, findings=(finding(1),))
    for since_round in ("night-1", "night-9"):
        trouble = Trouble("azure", "bert", "check-1", "drift")
        message = message_about(verdict_of(result), trouble, since_round=since_round)
        assert message.body.splitlines()[1] == f"since 2026-11-19 02:30 UTC, round {since_round}"


def test_an_absence_gives_the_reason_of_its_workload_else_of_the_platform() -> None:
    result = PlatformResult(
        verdict="inconclusive",
        unavailable="no worker",
        absent={"bert": "disk full", "mlm": ""},
        workloads={"bert": "inconclusive", "mlm": "inconclusive"},
    )
    expected = {"bert": "disk full", "mlm": "no worker", "": "no worker"}
    for workload, why in expected.items():
        message = message_about(verdict_of(result), Trouble("azure", workload, "unavailable", "unavailable"))
        where = f"azure, {workload}" if workload else "azure"
        assert message.subject == f"[plumbline] s: {where} is unavailable"
        assert message.body.splitlines()[0] == f"no record: {why}. The platform was not judged in this round."


def test_unjudged_nights_and_improvements_are_said_in_words() -> None:
    result = PlatformResult(verdict="pass", workloads={"bert": "pass"}, unjudged_nights=3, improved=("throughput",))
    messages = [
        message_about(verdict_of(result), trouble)
        for trouble in (
            Trouble("azure", "", "unjudged", "unjudged"),
            Trouble("azure", "", "improved-throughput", "improved"),
        )
    ]
    assert {message.body for message in messages} == {"new in this round\nround: night-2"}
    assert [message.subject for message in messages] == [
        "[plumbline] s: unjudged on azure: not judged for 3 nights",
        "[plumbline] s: improved on azure: throughput is better than its reference: accept a new baseline",
    ]


def test_several_causes_are_one_message_with_a_line_each_and_rounded_numbers() -> None:
    result = PlatformResult(
        verdict="drift",
        workloads={"bert": "drift", "mlm": "drift"},
        causes=(
            Cause(code="loss", sure="likely", why="of bert", workload="bert"),
            Cause(code="precision", sure="confirmed", why="TF32", workload="bert"),
            Cause(code="rng", sure="likely", why="of mlm", workload="mlm"),
        ),
        findings=(finding(1, observed=0.34518143745783636, limit=0.0), finding(2, workload="mlm")),
    )
    bert, new, mlm = (
        Trouble("azure", workload, code, "drift", since_round, SINCE)
        for workload, code, since_round in (
            ("bert", "loss", "night-1"), ("bert", "precision", "night-2"), ("mlm", "rng", "night-1")
        )
    )  # fmt: skip
    message = trouble_message(verdict_of(result), [bert, new], [mlm])
    assert message.subject == "[plumbline] s: drift on azure, bert: loss (likely), precision (confirmed)"
    assert message.body.splitlines() == [
        "loss, likely: of bert",
        "precision, confirmed: TF32",
        "check-1: 0.3452, the limit is 0",
        "since 2026-11-19 02:30 UTC, round night-1: loss",
        "new in this round: precision",
        "still open on azure, mlm: rng, since 2026-11-19 02:30 UTC, round night-1",
        "round: night-2",
    ]
    assert message.about == "s/azure"
    whole = trouble_message(verdict_of(result), [bert, new, mlm])
    assert whole.subject == (
        "[plumbline] s: drift on azure: bert: loss (likely), bert: precision (confirmed), mlm: rng (likely)"
    )
    assert whole.id != message.id


def test_a_recovery_has_the_incident_key_of_its_platform_unless_a_trouble_continues() -> None:
    two = PlatformResult(verdict="pass", workloads={"bert": "pass", "mlm": "pass"})
    bert, mlm, whole = (
        Trouble("azure", workload, "loss", "drift", "night-1", SINCE) for workload in ("bert", "mlm", "")
    )
    cases = [
        (two.replace(workloads={"bert": "pass"}), [bert], "azure"),
        (two, [bert], "azure, bert"),
        (two, [bert, mlm], "azure"),
        (two, [whole], "azure"),
    ]
    for result, ended, where in cases:
        message = recovery_message(verdict_of(result, **LINKS), ended)
        assert message.subject == f"[plumbline] s: {where} has recovered"
        assert message.body.splitlines()[:2] == [f"{where} passes in round night-2", "round: night-2"]
        assert (message.about, message.event) == ("s/azure", "recovered")
    partial = recovery_message(verdict_of(two.replace(workloads={"bert": "drift", "mlm": "drift"})), [bert], [mlm])
    assert partial.subject == "[plumbline] s: recovered on azure, bert: loss"
    assert partial.body.splitlines() == [
        "ended in round night-2: loss",
        "still open on azure, mlm: loss, since 2026-11-19 02:30 UTC, round night-1",
        "round: night-2",
    ]
    # A pager keeps the platform's incident open.
    assert partial.about == "s/azure/bert/loss"


def test_the_server_alerts_that_the_watch_has_stopped_which_no_watch_can() -> None:
    suite = small_suite(Path("/nowhere")).replace(alerts=[Alert(on=("missed",), block="slack-webhook/team")])
    (item,) = (
        item
        for item in desired(suite, controllers="ctl")
        if item.kind == "automation" and item.fields["action"]["type"] == "send-notification"
    )
    assert item.fields["action"]["subject"] == f"[plumbline] {suite.name}: nothing watches its rounds"
    assert "the work pool ctl" in item.fields["action"]["body"]
    # Longer than Prefect holds an event back, so that a restart of the server is no alert.
    assert item.fields["trigger"]["within"] > 900


def test_rounds_that_did_not_run_or_had_no_verdict_and_test_messages() -> None:
    missed = missed_message("s", SINCE)
    assert missed.subject == "[plumbline] s: the nightly round did not run"
    assert "due at 2026-11-19 02:30 UTC did not start" in missed.body
    assert (missed.id, missed.event, missed.about) == ("missed/2026-11-19T02:30:00+00:00", "missed", "s/missed")
    broken = no_verdict_message("s", "night-2", "the store is gone", "https://run")
    assert broken.body.splitlines()[1:] == ["the store is gone", "run: https://run"]
    assert no_verdict_message("s", "night-2", "why", "").body.splitlines()[1:] == ["why"]
    assert (broken.id.rpartition("/")[0], broken.event, broken.about) == ("broken/night-2", "missed", "s/missed")
    assert no_verdict_message("s", "night-2", "a different reason", "").id != broken.id
    assert "night-2 of s started and ended without a verdict" in broken.body
    subject, body = probe_message("s", SINCE)
    assert subject == "[plumbline] s: test of the alerts"
    assert "sent at 2026-11-19 02:30:00 UTC. Nothing is wrong" in body


FALSE_LINE = "report: https://evil.example"
TRICKS = [f"x\n{FALSE_LINE}", f"x\r\n{FALSE_LINE}", f"x\u2028{FALSE_LINE}", f"x\x85{FALSE_LINE}", f"x\x0b{FALSE_LINE}"]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_workers_message_begins_no_line_of_an_alert(trick: str) -> None:
    """The receiver would take its false link for the round's."""
    result = PlatformResult(
        verdict="drift",
        causes=(Cause(code="loss", sure="likely", why=trick, evidence=(trick,)),),
        findings=(finding(1, detail=trick, unit=trick, observed=trick, against=trick),),
        unavailable=trick,
    )
    verdict = verdict_of(result, **{**LINKS, "report_note": trick})
    messages = [
        message_about(verdict, Trouble("azure", "", what, event), since_round="night-1")
        for what, event in (("loss", "drift"), ("unavailable", "unavailable"))
    ]
    messages.append(no_verdict_message("s", "night-2", trick, "https://run"))
    for message in messages:
        lines = message.body.splitlines()
        assert not [line for line in lines if line.lstrip().startswith(FALSE_LINE)]
        assert any(FALSE_LINE in line for line in lines), "shown, as text of its line"
