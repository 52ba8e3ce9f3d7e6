"""Delivery of alerts by webhook and mail: once per new drift and recovery."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from email import message_from_bytes
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from prefect.settings import PREFECT_API_URL, temporary_settings

from plumbline.cli.main import main
from plumbline.data.stores import open_store
from plumbline.local.servers import reserve_port
from plumbline.night.alerts import AlertBook, Outgoing, add_once, after_success, missed_message, update
from plumbline.night.central import CentralStore
from plumbline.night.rounds import Round
from plumbline.schema.alert_event import EVENTS
from plumbline.schema.errors import UnavailableError
from plumbline.schema.suite import Alert, Schedule, Suite
from plumbline.schema.verdict import Cause
from plumbline.tasks import alert
from plumbline.tasks.alert import alert_about_verdict, alert_without_verdict, deliver_pending
from plumbline.tasks.prefect_client.notifications import AppriseUrl, Blocks, send
from plumbline.tasks.report import add_notes
from tests.flows.alert_nights import ALERTS, NIGHT, NOBODY, book_of, night, verdict
from tests.flows.small_suite import write_suite
from tests.flows.webhook_server import Receiver, receiver


@pytest.fixture
def webhook(_settings: None) -> Iterator[Receiver]:
    with receiver("hook") as item:
        yield item


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no slow machine for a slow receiver."""
    for name in ("_LATE_SECONDS", "_DELIVERY_SECONDS"):
        monkeypatch.setattr(alert, name, 600.0)


class Mailbox:
    """Messages of an SMTP server."""

    def __init__(self) -> None:
        self.mails: list[bytes] = []

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's
        self.mails.append(envelope.content)
        return "250 OK"


@pytest.fixture
def mailbox(_settings: None) -> Iterator[Mailbox]:
    box = Mailbox()
    port = reserve_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    AppriseUrl(url=f"mailto://127.0.0.1:{port}/?from=plumbline@example.com&to=team@example.com&mode=insecure").save(
        "mail", overwrite=True
    )
    yield box
    controller.stop()


def test_once_per_new_drift_none_on_the_same_night_again_once_per_recovery(
    webhook: Receiver, mailbox: Mailbox, tmp_path: Path
) -> None:
    book = book_of(tmp_path)
    for number, outcome in enumerate(("pass", "drift", "drift", "inconclusive", "drift", "pass", "pass")):
        assert night(book, number, outcome) == []
    subjects = [got["title"] for got in webhook.got]
    assert subjects == ["[plumbline] s: drift on azure: precision (confirmed)", "[plumbline] s: azure has recovered"]
    body = webhook.got[0]["message"]
    for part in ("TF32 was on", "3.00e-4", "2.00e-6", "/r/report.html", "night-1", "new in this round"):
        assert part in body
    mails = [message_from_bytes(mail) for mail in mailbox.mails]
    assert [mail["subject"] for mail in mails] == ["[plumbline] s: drift on azure: precision (confirmed)"]


@pytest.mark.usefixtures("mailbox", "patient")
def test_a_receiver_that_fails_three_times_gets_it_once(webhook: Receiver, tmp_path: Path) -> None:
    webhook.answers = [500, 500, 500]
    assert night(book_of(tmp_path), 0, "drift") == []
    assert (webhook.asked, len(webhook.got)) == (4, 1)


@pytest.mark.usefixtures("mailbox")
def test_a_message_that_two_senders_come_to_at_once_is_sent_by_one(webhook: Receiver, tmp_path: Path) -> None:
    book, others = book_of(tmp_path), []
    book.change(lambda state: update(state, verdict(0, "drift"), ALERTS, NIGHT))
    webhook.answers = [500]
    assert deliver_pending(book, NOBODY, sleep=lambda _: others.append(deliver_pending(book, NOBODY))) == []
    assert others == [[]]
    assert len(webhook.got) == 1


def pass_minutes(book: AlertBook, minutes: float) -> None:
    """End what has waited for so long, as if this time had passed."""

    def earlier(message: Outgoing) -> Outgoing:
        until = message.sending_until
        return message.replace(sending_until=until and until - timedelta(minutes=minutes))

    book.change(lambda state: state.replace(pending=[earlier(message) for message in state.pending]))


def test_a_receiver_that_answers_late_gets_at_most_three_copies(webhook: Receiver, tmp_path: Path) -> None:
    """It has the message each time; Apprise stopped waiting before."""
    webhook.answer_seconds = 3.0
    AppriseUrl(url=f"{webhook.url}?rto=1.2").save("late", overwrite=True)
    alerts = [Alert(on=("drift",), block="apprise-url/late")]
    book = book_of(tmp_path)
    book.change(lambda state: update(state, verdict(0, "drift"), alerts, NIGHT))
    said = []
    for _ in range(20):
        said += deliver_pending(book, NOBODY)
        pass_minutes(book, 3)
    assert webhook.asked == 3
    assert ["may have it" in line for line in said] == [False, False, True]
    assert book.read().pending == ()


@pytest.mark.usefixtures("mailbox", "patient")
def test_what_cannot_be_delivered_is_said_and_kept_and_sent_later(webhook: Receiver, tmp_path: Path) -> None:
    book = book_of(tmp_path)
    webhook.answers = [500] * 5
    failed = night(book, 0, "drift")
    assert len(failed) == 1
    assert "could not be delivered to apprise-url/hook" in failed[0]
    assert [item.failures for item in book.read().pending] == [1]
    assert deliver_pending(book, NOBODY) == []  # not yet again
    pass_minutes(book, 3)
    book.change(lambda state: add_once(state, missed_message("s", NIGHT), ALERTS, NIGHT))
    webhook.asked, webhook.answers = 0, [500] * 6
    # A receiver that refused every try gets one more for each later message, not all tries again.
    assert len(deliver_pending(book, NOBODY, sleep=lambda _: None)) == 2
    assert webhook.asked == 6
    book.change(lambda state: after_success(state, state.pending[-1]))
    pass_minutes(book, 6)
    assert night(book, 1, "drift") == []
    assert len(webhook.got) == 1
    assert book.read().pending == ()


@pytest.mark.usefixtures("patient")
def test_receivers_that_fail_are_tried_again_at_once_not_one_after_the_other(webhook: Receiver, tmp_path: Path) -> None:
    AppriseUrl(url=webhook.url).save("second", overwrite=True)
    alerts = [Alert(on=("drift",), block=f"apprise-url/{name}") for name in ("hook", "second")]
    webhook.answers = [500, 500]
    book, both = book_of(tmp_path), Barrier(2)
    book.change(lambda state: update(state, verdict(0, "drift"), alerts, NIGHT))
    # Each waits for the other's pause.
    assert deliver_pending(book, NOBODY, sleep=lambda _: both.wait(120)) == []
    assert len(webhook.got) == 2


@pytest.fixture
def round_(suite: Suite) -> Round:
    """Return a round whose recipients are the webhook under two names."""
    alerts = [
        Alert(on=("drift", "missed"), block="apprise-url/hook", address_from="HOOK"),
        Alert(on=("drift",), block="apprise-url/second", address_from="SECOND"),
    ]
    return Round("night-0", suite.replace(schedule=Schedule(cron="0 2 * * *"), alerts=alerts), {})


def test_a_malformed_address_stops_no_recipient(
    webhook: Receiver, round_: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "secret but no address")  # the server holds a valid block
    monkeypatch.setenv("SECOND", webhook.url)
    AppriseUrl(url=webhook.url).save("second", overwrite=True)
    (line,) = alert_about_verdict(round_, verdict(0, "drift"))
    assert "the address in HOOK: apprise-url/hook: is not an address of the type apprise-url" in line
    assert "secret" not in line
    assert len(webhook.got) == 2


def test_every_event_can_be_sent(webhook: Receiver) -> None:
    events = tuple(EVENTS)
    assert {event: send("apprise-url/hook", event, "body", NOBODY, event=event) for event in events} == dict.fromkeys(
        events, ""
    )
    assert [got["title"] for got in webhook.got] == list(events)


def test_an_alert_is_sent_though_its_state_cannot_be_stored(webhook: Receiver, round_: Round, tmp_path: Path) -> None:
    AppriseUrl(url=webhook.url).save("second", overwrite=True)
    (tmp_path / "central").mkdir()
    (tmp_path / "central" / "alerts").write_text("not a folder", encoding="utf-8")
    lines = alert_about_verdict(round_, verdict(0, "drift"))
    assert [got["title"] for got in webhook.got] == ["[plumbline] s: drift on azure: precision (confirmed)"] * 2
    assert "the alert state cannot be used, so alerts may be repeated" in lines[0]
    assert lines[0] in webhook.got[0]["message"]


@pytest.mark.usefixtures("_settings")
def test_a_verdict_stands_though_its_notes_cannot_be_stored(round_: Round, tmp_path: Path) -> None:
    (tmp_path / "central").write_text("not a folder", encoding="utf-8")
    nothing: Any = None  # is not looked at
    noted = add_notes(round_, verdict(0, "drift"), ["nobody was reached"], nothing, nothing)
    assert (noted.verdict, noted.notes) == ("drift", ("nobody was reached",))


def test_what_a_record_says_is_no_markup_in_a_mail(mailbox: Mailbox, tmp_path: Path) -> None:
    evil = Cause(code="precision", sure="confirmed", why="<img src=http://x.example/a> \x1b[2J")
    azure = verdict(0, "drift").platforms["azure"].replace(causes=(evil,))
    book = book_of(tmp_path)
    book.change(lambda state: update(state, verdict(0, "drift").replace(platforms={"azure": azure}), ALERTS[1:], NIGHT))
    assert deliver_pending(book, NOBODY, sleep=lambda _: None) == []
    (mail,) = (message_from_bytes(item) for item in mailbox.mails)
    parts = {
        part.get_content_type(): part.get_payload(decode=True).decode()
        for part in mail.walk()
        if not part.is_multipart()
    }
    assert "&lt;img src=http://x.example/a&gt;" in parts["text/html"]
    assert "<img" not in parts["text/html"]
    assert "confirmed: <img src=http://x.example/a>" in parts["text/plain"]
    assert not any("\x1b" in shown for shown in parts.values())


@pytest.mark.usefixtures("mailbox")
def test_a_round_without_a_verdict_is_alerted_once(
    webhook: Receiver, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = suite.replace(alerts=ALERTS)
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0d1f5b1e-0000-4000-8000-000000000000")
    for _ in range(2):
        with pytest.raises(UnavailableError), alert_without_verdict(suite, "night-1"):
            raise UnavailableError("is away", where="the store")
    # Any other error ends the run as Failed: the watch alerts about it.
    with pytest.raises(ValueError, match="token"), alert_without_verdict(suite, "night-2"):
        raise ValueError("https://token@example.com")
    # A person retries a round that passed: its failure changes no verdict.
    CentralStore(open_store(suite.store)).put_round(verdict(3, "pass").replace(suite=suite.name))
    with pytest.raises(UnavailableError), alert_without_verdict(suite, "night-3"):
        raise UnavailableError("is away", where="the store")
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {suite.name}: a round ended without a verdict"]
    assert "the store: is away" in webhook.got[0]["message"]


def test_the_command_proves_that_messages_arrive(
    webhook: Receiver, mailbox: Mailbox, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_suite(suite.replace(alerts=ALERTS), tmp_path)
    assert main(["doctor", str(path), "--alerts"]) == 0
    assert len(webhook.got) == len(mailbox.mails) == 1
    webhook.answers = [500]
    assert main(["doctor", str(path), "--alerts", "--json"]) == 3
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"]


@pytest.mark.usefixtures("_settings")
def test_a_block_that_was_deleted_on_the_server_is_known_by_its_variable(suite: Suite) -> None:
    with receiver() as hook:
        alert = Alert(on=("drift",), block="apprise-url/deleted", address_from="HOOK_ADDRESS")
        known = Blocks(suite.replace(alerts=(alert,)), {"HOOK_ADDRESS": hook.url})
        assert send(alert.block, "subject", "body", known) == ""
        assert len(hook.got) == 1


def test_a_test_alert_without_its_variable_and_without_a_server_names_both(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOOK_ADDRESS", raising=False)
    alert = Alert(on=("drift",), block="apprise-url/team", address_from="HOOK_ADDRESS")
    path = write_suite(suite.replace(alerts=(alert,)), tmp_path)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert main(["doctor", str(path), "--alerts"]) == 3
    said = capsys.readouterr().err
    assert "apprise-url/team: has no known address (hint: set the variable of its address_from" in said
    assert "RuntimeError" not in said


RETIRED = """
import sys
from prefect.blocks.notifications import AppriseNotificationBlock

class Retired(AppriseNotificationBlock):
    _block_type_name = "Retired"
    _block_type_slug = "retired"

Retired(url=sys.argv[1]).save("old", overwrite=True)
"""


@pytest.mark.long
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
    assert [item.block for item in book.read().pending] == ["retired/old"]
