"""Alerts that arrive, at a webhook and by mail: once for a new drift, once for its recovery, through failures too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from prefect.blocks.notifications import PagerDutyWebHook
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Running

from plumbline.alerts import AlertBook, claim, update
from plumbline.alerts.words import tell_open
from plumbline.central import CentralStore
from plumbline.cli.main import main
from plumbline.errors import UnavailableError
from plumbline.localstack.services import free_port
from plumbline.schema.suite import Alert, Schedule, Suite
from plumbline.schema.verdict import Cause, Finding, Outcome, PlatformResult, RoundVerdict
from plumbline.stores import open_store
from tasks.addresses import Blocks
from tasks.alerting import told_if_broken
from tasks.blocks import AppriseUrl
from tasks.delivering import deliver
from tasks.sending import send
from tasks.watching import check_missed
from tests.flows.ground import small_suite, to_toml
from tests.flows.receivers import Internet, Receiver, internet, receiver


@pytest.fixture
def webhook(_settings: None) -> Iterator[Receiver]:
    with receiver() as one:
        AppriseUrl(url=one.url).save("hook", overwrite=True)
        yield one


class Mailbox:
    """What an SMTP server hands on."""

    def __init__(self) -> None:
        self.mails: list[bytes] = []

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's
        self.mails.append(envelope.content)
        return "250 OK"


@pytest.fixture
def mailbox(_settings: None) -> Iterator[Mailbox]:
    box = Mailbox()
    port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    AppriseUrl(url=f"mailto://127.0.0.1:{port}/?from=plumbline@example.com&to=team@example.com&mode=insecure").save(
        "mail", overwrite=True
    )
    yield box
    controller.stop()


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
    return deliver(book, NOBODY, sleep=lambda _: None)


def test_once_per_new_drift_none_on_the_same_night_again_once_per_recovery(
    webhook: Receiver, mailbox: Mailbox, tmp_path: Path
) -> None:
    book = book_of(tmp_path)
    for number, outcome in enumerate(("pass", "drift", "drift", "inconclusive", "drift", "pass", "pass")):
        assert night(book, number, outcome) == []
    subjects = [got["title"] for got in webhook.got]
    assert subjects == ["[plumbline] s: drift on azure: precision (confirmed)", "[plumbline] s: azure has recovered"]
    body = webhook.got[0]["message"]
    for part in ("TF32 was on", "0.0003", "2e-06", "/r/report.html", "night-1", "new in this round"):
        assert part in body
    mails = [message_from_bytes(mail) for mail in mailbox.mails]
    assert [mail["subject"] for mail in mails] == ["[plumbline] s: drift on azure: precision (confirmed)"]


@pytest.mark.usefixtures("mailbox")
def test_another_cause_is_told_and_a_lasting_one_is_reminded_of(webhook: Receiver, tmp_path: Path) -> None:
    book = book_of(tmp_path)
    night(book, 0, "drift")
    night(book, 1, "drift", "tokenization")
    night(book, 9, "drift", "tokenization")
    assert [got["title"].rpartition(": ")[2] for got in webhook.got] == [
        "precision (confirmed)", "tokenization (confirmed)", "tokenization (confirmed)",
    ]  # fmt: skip
    assert "since 2026-11-21 02:00 UTC, round night-1" in webhook.got[2]["message"]


@pytest.mark.usefixtures("mailbox")
def test_a_receiver_that_fails_three_times_gets_it_once(webhook: Receiver, tmp_path: Path) -> None:
    webhook.answers = [500, 500, 500]
    assert night(book_of(tmp_path), 0, "drift") == []
    assert (webhook.asked, len(webhook.got)) == (4, 1)


@pytest.mark.usefixtures("mailbox")
def test_a_message_that_two_senders_come_to_at_once_is_sent_by_one(webhook: Receiver, tmp_path: Path) -> None:
    book, others = book_of(tmp_path), []
    book.change(lambda state: update(state, verdict(0, "drift"), ALERTS, NIGHT))
    webhook.answers = [500]
    assert deliver(book, NOBODY, sleep=lambda _: others.append(deliver(book, NOBODY))) == []
    assert others == [[]]
    assert len(webhook.got) == 1


@pytest.mark.usefixtures("mailbox")
def test_a_message_whose_sender_died_is_sent_by_the_next(webhook: Receiver, tmp_path: Path) -> None:
    book, long_ago = book_of(tmp_path), datetime(2026, 1, 1, tzinfo=UTC)
    book.change(lambda state: update(state, verdict(0, "drift"), ALERTS, NIGHT))
    for one in book.read()[0].pending:
        book.change(partial(claim, wanted=one, now=long_ago, until=long_ago + timedelta(minutes=5)))
    assert deliver(book, NOBODY) == []
    assert len(webhook.got) == 1


@pytest.mark.usefixtures("mailbox")
def test_what_cannot_be_delivered_is_said_and_kept_and_sent_later(webhook: Receiver, tmp_path: Path) -> None:
    book = book_of(tmp_path)
    webhook.answers = [500] * 5
    failed = night(book, 0, "drift")
    assert len(failed) == 1
    assert "could not be delivered to apprise-url/hook" in failed[0]
    assert [one.failures for one in book.read()[0].pending] == [1]
    assert night(book, 1, "drift") == []
    assert len(webhook.got) == 1
    assert book.read()[0].pending == ()


@pytest.mark.usefixtures("mailbox")
def test_a_round_that_did_not_run_is_told_once(webhook: Receiver, suite: Suite) -> None:
    suite = suite.replace(
        schedule=Schedule(cron="0 2 * * *", timezone="Europe/Berlin", grace_seconds=600), alerts=ALERTS
    )
    watching = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert check_missed.fn(suite, watching) == ("", [])
    # The clocks went back in that night: two o'clock in Berlin is one o'clock in UTC.
    early = datetime(2026, 10, 25, 0, 9, tzinfo=UTC)
    assert check_missed.fn(suite, early) == ("", [])
    late = datetime(2026, 10, 26, 1, 11, tzinfo=UTC)
    assert "2026-10-26" in check_missed.fn(suite, late)[0]
    check_missed.fn(suite, late + timedelta(minutes=10))
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {suite.name}: the nightly round did not run"]
    assert "2026-10-26 02:00 CET" in webhook.got[0]["message"]


@pytest.mark.usefixtures("mailbox")
def test_a_round_that_breaks_is_told_once_and_without_the_addresses_in_its_error(
    webhook: Receiver, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = suite.replace(alerts=ALERTS)
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0d1f5b1e-0000-4000-8000-000000000000")
    for error in (ValueError("https://token@example.com"), UnavailableError("is away", where="the store")):
        for _ in range(2):
            with pytest.raises(type(error)), told_if_broken(suite, f"night-{type(error).__name__.lower()}"):
                raise error
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {suite.name}: a round came to no verdict"] * 2
    assert "ValueError: its log says where" in webhook.got[0]["message"]
    assert "token" not in webhook.got[0]["message"]
    assert "the store: is away" in webhook.got[1]["message"]


@pytest.mark.parametrize("somewhere", [True, False], ids=["away", "none"])
def test_a_missed_round_is_told_while_the_server_is_away_and_where_there_is_none(
    webhook: Receiver, suite: Suite, monkeypatch: pytest.MonkeyPatch, *, somewhere: bool
) -> None:
    alerts = [Alert(on=("missed",), block="apprise-url/hook", address_from="HOOK")]
    suite = suite.replace(schedule=Schedule(cron="0 2 * * *"), alerts=alerts)
    monkeypatch.setenv("HOOK", webhook.url)
    away = (
        {"updates": {PREFECT_API_URL: "http://127.0.0.1:9/api"}}
        if somewhere
        else {"restore_defaults": {PREFECT_API_URL}}
    )
    with temporary_settings(**away):
        assert check_missed.fn(suite, NIGHT) == ("", [])
        told, failed = check_missed.fn(suite, NIGHT + timedelta(hours=26))
    assert (told, failed) == ("the round that was due at 2026-11-21 02:00 UTC did not start", [])
    assert len(webhook.got) == 1


def test_the_command_proves_that_messages_arrive(
    webhook: Receiver, mailbox: Mailbox, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suite.toml"
    content = suite.replace(alerts=ALERTS).model_dump(mode="json", exclude_none=True)
    path.write_text(to_toml(content), encoding="utf-8")
    assert main(["alert", str(path), "--test"]) == 0
    assert len(webhook.got) == len(mailbox.mails) == 1
    webhook.answers = [500]
    assert main(["alert", str(path), "--test", "--json"]) == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"]


HOSTS = ("hooks.slack.com", "prod-7.westeurope.logic.azure.com", "events.pagerduty.com", "events.eu.pagerduty.com")
ADDRESSES = {
    "slack-webhook/team": "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    "ms-teams-webhook/team": "https://prod-7.westeurope.logic.azure.com:443/workflows/643e69f83c8944/triggers/manual"
    "/paths/invoke?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=KODuebWbDGYFr0z0eu",
    "pager-duty-webhook/team": "pagerduty://R0123456789ABCDEF@apiKEY/?region=eu",
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Internet]:
    with internet(tmp_path, HOSTS) as one:
        for name, value in one.variables.items():
            monkeypatch.setenv(name, value)
        yield one


@pytest.mark.usefixtures("_settings")
def test_slack_teams_and_pagerduty_get_what_the_suite_made_blocks_of(
    world: Internet,
    suite: Suite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alerts = []
    for number, (block, address) in enumerate(ADDRESSES.items()):
        monkeypatch.setenv(f"ADDRESS_{number}", address)
        alerts.append(Alert(on=("drift", "recovered"), block=block, address_from=f"ADDRESS_{number}"))
    path = tmp_path / "suite.toml"
    path.write_text(to_toml(suite.replace(alerts=alerts).model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    assert main(["deploy", str(path), "--dry-run"]) == 0
    assert "+ block pager-duty-webhook/team" in capsys.readouterr().out
    assert main(["deploy", str(path)]) == 0
    monkeypatch.setenv("ADDRESS_0", ADDRESSES["slack-webhook/team"] + "x")
    assert main(["deploy", str(path)]) == 0
    out = capsys.readouterr().out
    assert "~ block slack-webhook/team" in out
    assert "1 done" in out
    assert not any(part in out for part in ("T1JJ3T3L2", "KODuebWb", "R0123456789ABCDEF"))
    book = book_of(tmp_path)
    for number, outcome in enumerate(("drift", "drift", "pass")):
        assert night(book, number, outcome, alerts=alerts) == []
    by_host: dict[str, list[dict[str, Any]]] = {}
    for host, _, content in world.got:
        by_host.setdefault(host, []).append(content)
    slack, teams, pager = (by_host[host] for host in (HOSTS[0], HOSTS[1], HOSTS[3]))
    assert [len(lot) for lot in (slack, teams, pager)] == [2, 2, 2]
    for content in (slack[0], teams[0], pager[0]):
        text = json.dumps(content)
        for part in ("drift on azure: precision (confirmed)", "TF32 was on", "0.0003 relative", "2e-06", "new in this",
                     "/r/report.html", "night-0"):  # fmt: skip
            assert part in text
    assert all("azure has recovered" in json.dumps(content) for content in (slack[1], teams[1]))
    assert world.got[0][1].endswith("FQx")
    assert slack[0]["attachments"][0]["color"] != slack[1]["attachments"][0]["color"]
    assert "TF32 was on\n\nprobe.forward" in teams[0]["attachments"][0]["content"]["body"][-1]["text"]
    assert [one["event_action"] for one in pager] == ["trigger", "resolve"]
    assert pager[0]["dedup_key"] == pager[1]["dedup_key"] == "s/azure"
    assert (pager[0]["payload"]["severity"], pager[0]["routing_key"]) == ("error", "R0123456789ABCDEF")


@pytest.mark.usefixtures("_settings")
def test_a_pager_that_refuses_is_said_without_its_key(world: Internet) -> None:
    PagerDutyWebHook(integration_key="R0123456789ABCDEF", api_key="apiKEY").save("refused", overwrite=True)
    world.answers = [429]
    why = send("pager-duty-webhook/refused", "subject", "body", NOBODY)
    assert "429" in why
    assert "R0123" not in why


RETIRED = """
import sys
from prefect.blocks.notifications import AppriseNotificationBlock

class Retired(AppriseNotificationBlock):
    _block_type_name = "Retired"
    _block_type_slug = "retired"

Retired(url=sys.argv[1]).save("old", overwrite=True)
"""


@pytest.mark.usefixtures("mailbox")
def test_a_block_whose_code_is_gone_is_one_failure_and_stops_no_other_message(
    webhook: Receiver, tmp_path: Path
) -> None:
    somebody = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    subprocess.run([sys.executable, "-c", RETIRED, webhook.url], env=somebody, check=True)
    alerts = (Alert(on=("drift",), block="retired/old"), *ALERTS)
    book = book_of(tmp_path)
    failed = night(book, 0, "drift", alerts=alerts)
    assert len(failed) == 1
    assert failed[0].endswith("to retired/old: retired/old cannot be used: UnknownBlockType")
    assert len(webhook.got) == 1
    assert [one.block for one in book.read()[0].pending] == ["retired/old"]


def test_the_server_tells_of_a_controller_that_crashed(
    client: SyncPrefectClient, webhook: Receiver, suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", webhook.url)
    alerts = [Alert(on=("missed",), block="apprise-url/crash", address_from="HOOK")]
    path = tmp_path / "suite.toml"
    path.write_text(to_toml(suite.replace(alerts=alerts).model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    assert main(["deploy", str(path)]) == 0
    deployment = client.read_deployment_by_name(f"regression/{suite.name}").id
    deadline, runs = time.monotonic() + 30, []
    while not webhook.got:
        # Again: the triggers' service takes up a new automation in its own time.
        assert time.monotonic() < deadline, "no alert arrived"
        runs.append(client.create_flow_run_from_deployment(deployment).id)
        for state in (Running(), Crashed(message="killed by SIGKILL")):
            client.set_flow_run_state(runs[-1], state, force=True)
        for _ in range(20):
            time.sleep(0 if webhook.got else 0.1)
    assert webhook.got[0]["title"] == f"[plumbline] {suite.name}: the controller of a round crashed"
    assert "killed by SIGKILL" in webhook.got[0]["message"]
    assert any(f"/runs/flow-run/{run}" in webhook.got[0]["message"] for run in runs)
    assert len(webhook.got) <= len(runs)


def test_a_finding_of_digests_says_what_was_expected_in_few_words() -> None:
    finding = Finding(check="probe.batch", outcome="drift", observed="a" * 64, limit="b" * 64, against="platform aws")
    result = PlatformResult(verdict="drift", findings=(finding,))
    told = tell_open(
        verdict(1, "drift").replace(platforms={"azure": result}), "azure", "azure/probe.batch", "drift",
        since_round="night-1", since=NIGHT,
    )  # fmt: skip
    lost = Finding(check="baseline.record", outcome="drift", detail="its digest does not match")
    worded = verdict(1, "drift").replace(platforms={"azure": PlatformResult(verdict="drift", findings=(lost,))})
    without_number = tell_open(worded, "azure", "azure/x", "drift", since_round="night-1", since=NIGHT)
    assert "baseline.record: its digest does not match\n" in without_number.body
    assert "probe.batch: aaaaaaaaaaaa..., expected bbbbbbbbbbbb..., against platform aws\n" in told.body
