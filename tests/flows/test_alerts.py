"""Alerts that arrive, at a webhook and by mail: once for a new drift, once for its recovery, through failures too."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from plumbline.alerts import AlertBook, update
from plumbline.central import CentralStore
from plumbline.cli.main import main
from plumbline.localstack.services import free_port
from plumbline.schema.suite import Alert, Schedule, Suite
from plumbline.schema.verdict import Cause, Finding, Outcome, PlatformResult, RoundVerdict
from plumbline.stores import open_store
from tasks.alerting import deliver
from tasks.blocks import AppriseUrl
from tasks.watching import check_missed
from tests.flows.ground import to_toml


class Receiver:
    """A webhook that keeps what it gets, and answers as it was told."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked += 1
                status = outer.answers.pop(0) if outer.answers else 200
                if status == 200:
                    outer.got.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def webhook(_settings: None) -> Iterator[Receiver]:
    receiver = Receiver()
    AppriseUrl(url=receiver.url).save("hook", overwrite=True)
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


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


def night(book: AlertBook, number: int, outcome: Outcome, code: str = "precision") -> list[str]:
    now = NIGHT + timedelta(days=number)
    book.change(lambda state: update(state, verdict(number, outcome, code), ALERTS, now))
    return deliver(book, sleep=lambda _: None)


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
    assert "since round night-1" in webhook.got[2]["message"]


@pytest.mark.usefixtures("mailbox")
def test_a_receiver_that_fails_three_times_gets_it_once(webhook: Receiver, tmp_path: Path) -> None:
    webhook.answers = [500, 500, 500]
    assert night(book_of(tmp_path), 0, "drift") == []
    assert (webhook.asked, len(webhook.got)) == (4, 1)


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
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {suite.name}: the nightly round did not run"] * len(
        {got["message"] for got in webhook.got}
    )
    assert len(webhook.got) >= 1


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
