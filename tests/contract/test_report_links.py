"""Alert links that open the report in a real browser, from a bucket or a folder."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests

from plumbline.data.stores import open_store
from plumbline.night.alerts.messages import trouble_message
from plumbline.night.alerts.troubles import Trouble
from plumbline.night.central import CentralStore
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.plan import MAIN, Assignment, Round
from plumbline.night.rounds.reporting import link_to, write_report
from plumbline.night.rounds.site import connect_reports, write_site
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.tasks.prefect_client.notifications import AppriseUrl
from tests.contract.conftest import ACCOUNT, give_azure, give_google, make_bucket, make_container
from tests.faultserver.google import GoogleServer
from tests.flows.webhook_server import receiver
from tests.http_server import serving
from tests.report_browser.conftest import Browser, find_browser
from tests.unit.report.samples import drifted, passing, record, spec, verdict_of

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
TROUBLE = Trouble("azure", "", "precision", "drift")
KEY = "rounds/a b/report.html"


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(find_browser(), tmp_path)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder as a static site."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    with serving(functools.partial(Handler, directory=str(folder))) as url:
        yield url


def finished_round(store: str, report_url: str = "") -> tuple[RoundVerdict, str]:
    """Return a drifted round's verdict with written report and site, and a record id."""
    platforms = {name: {"work_pool": name, "data": store, "outbox": f"{store}-{name}"} for name in ("aws", "azure")}
    workload = {"model": "tiny", "data": "reviews", "seed": 7, "batch_size": 32, "probe": {}}
    suite = Suite.model_validate({
        "name": "nightly", "store": store, "report_url": report_url, "reference": "aws", "platforms": platforms,
        "workloads": {"bert-tiny-reviews": workload},
    })  # fmt: skip
    verdict = verdict_of("drift", {"aws": passing(), "azure": drifted()})
    records = {name: record(name) for name in platforms}
    central = CentralStore(open_store(store))
    for item in records.values():
        central.put_text(f"records/{item.record.record_id}/record.json", item.record.model_dump_json())
    assigned = {Assignment(name, "bert-tiny-reviews", MAIN): item for name, item in records.items()}
    round_ = Round(verdict.round, suite, {"bert-tiny-reviews": spec()})
    verdict, _ = write_report(round_, verdict, GatheredRecords(assigned), {}, central)
    central.put_round(verdict)
    write_site(central, suite)
    connect_reports(central, suite.name, [verdict.round], report_url)
    return verdict, records["azure"].record.record_id


def link_in_the_alert(verdict: RoundVerdict) -> str:
    """Send the alert through a webhook; return the received link."""
    output = trouble_message(verdict, [replace(TROUBLE, since_round=verdict.round, since=NOW)])
    with receiver() as inbox:
        block: Any = AppriseUrl(url=inbox.url)
        with block.raise_on_failure():
            block.notify(output.body, output.subject)
        (message,) = inbox.got
    match = re.search(r"^report: (\S+)$", message["message"], re.MULTILINE)
    assert match is not None, message
    return match[1]


def opened(browser: Browser, link: str) -> str:
    done = browser._run("--dump-dom", link)
    assert "CONSOLE" not in done.stderr
    return done.stdout


def check_in_the_browser(browser: Browser, verdict: RoundVerdict, record_id: str) -> None:
    """Check that the alert's link shows the report, and its link the record."""
    page = opened(browser, link := link_in_the_alert(verdict))
    assert "azure has drifted" in page
    assert verdict.round in page
    (href,) = re.findall(rf'<a href="([^"]*)">{re.escape(record_id)}</a>', page)
    target = requests.compat.urljoin(link, html.unescape(href))
    assert f'"record_id":"{record_id}"' in opened(browser, target).replace("&quot;", '"')
    # A presigned link opens one object: a report behind it has no link to the site, rather than one that is refused.
    links = re.findall(r'<a href="([^"]*)">all nights</a>', page)
    assert bool(links) == ("X-Amz-" not in link)
    for href in links:
        suites = requests.compat.urljoin(requests.compat.urljoin(link, href), "../index.html")
        assert "azure has drifted" in opened(browser, suites)


@pytest.mark.long
def test_a_presigned_link_opens_the_report_and_its_records(
    moto: str, clean_environment: pytest.MonkeyPatch, browser: Browser
) -> None:
    make_bucket(clean_environment, moto, "central")
    verdict, record_id = finished_round("s3://central/team a")
    assert "opens until" in verdict.report_note
    assert "X-Amz-Expires=604800" in verdict.report
    check_in_the_browser(browser, verdict, record_id)


@pytest.mark.long
def test_the_suites_own_site_opens_the_report_and_its_records(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "central").mkdir()
    with served(tmp_path / "central") as site:
        verdict, record_id = finished_round(f"file://{tmp_path}/central", f"{site}/")
        assert verdict.report == f"{site}/rounds/{verdict.suite}/{verdict.round}/report.html"
        assert not verdict.report_note
        check_in_the_browser(browser, verdict, record_id)


def test_a_folder_without_a_site_gives_a_path_and_says_so(tmp_path: Path, browser: Browser) -> None:
    verdict, record_id = finished_round(f"file://{tmp_path}/central")
    assert verdict.report == f"{tmp_path}/central/rounds/{verdict.suite}/{verdict.round}/report.html"
    assert "a path on the controller's disk, not a link" in verdict.report_note
    output = trouble_message(verdict, [replace(TROUBLE, since_round=verdict.round, since=NOW)])
    assert f"note: {verdict.report_note}" in output.body
    page = Path(verdict.report).read_text(encoding="utf-8")
    assert f'href="../../../records/{record_id}/record.json"' in page
    assert "azure has drifted" in opened(browser, Path(verdict.report).as_uri())


def stored(url: str) -> CentralStore:
    central = CentralStore(open_store(url))
    central.put_text(KEY, "<!DOCTYPE html>page")
    return central


def test_each_clouds_link_is_a_page_for_a_week_and_for_nobody_else(
    moto: str, azurite: str, clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_bucket(clean_environment, moto, "linked")
    make_container(clean_environment, azurite, "linked")
    with GoogleServer() as google:
        give_google(clean_environment, google, tmp_path)
        for url in ("s3://linked", f"az://{ACCOUNT}/linked", "gs://bucket/x"):
            link = link_to(stored(url), KEY, "", now=NOW)
            assert "2026-11-29 02:00 UTC" in link.note
            answer = requests.get(link.url, timeout=10)
            assert (answer.status_code, answer.text) == (200, "<!DOCTYPE html>page")
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            if not url.startswith("s3"):  # moto checks no signature
                assert requests.get(link.url.partition("?")[0], timeout=10).status_code in (401, 403, 404, 409)


def test_without_a_key_to_sign_with_the_address_is_said_to_be_no_link(
    azurite: str, clean_environment: pytest.MonkeyPatch
) -> None:
    give_azure(clean_environment, f"{azurite}/{{account}}")
    clean_environment.delenv("AZURE_STORAGE_KEY")
    clean_environment.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021-12-02&sig=x")
    link = link_to(CentralStore(open_store(f"az://{ACCOUNT}/linked")), KEY, "")
    assert link.url == f"az://{ACCOUNT}/linked/{KEY}"
    assert "not a link (a SAS token cannot sign a link): set report_url" in link.note
