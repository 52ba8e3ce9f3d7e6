"""A stock server behind a proxy that answers for it: a sign-in page, wrong JSON, a redirect, a refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from plumbline.cli.main import main
from plumbline.night.dispatch import Job
from plumbline.schema.errors import AccessError, ConfigurationError, PlumblineError, UnavailableError
from plumbline.schema.suite import Suite
from plumbline.tasks.dispatch import PrefectOrchestrator
from plumbline.tasks.prefect_client import platform_apis
from plumbline.tasks.prefect_client.api import wait_for_api
from plumbline.tasks.prefect_client.flow_runs import start_run
from plumbline.tasks.prefect_client.platform_apis import open_apis
from tests.flows.small_suite import write_suite
from tests.http_server import Handler, Server

SECRET = "role-credentials-of-the-machine"
HTML, JSON = "text/html; charset=utf-8", "application/json"
PAGE = b"<!doctype html><title>Sign in</title>"
ANSWERS: dict[str, tuple[int, str, bytes]] = {
    "page": (200, HTML, PAGE),
    "page without": (404, HTML, PAGE),
    "object": (200, JSON, b"{}"),
    "list": (200, JSON, b'["a", 1]'),
    "no route": (404, JSON, b'{"detail": "Not Found"}'),
    "not json": (200, JSON, PAGE),
    "deep": (200, JSON, b"[" * 100_000),
    "redirect": (302, HTML, b""),
    "redirect of nothing": (307, HTML, b""),
    "no login": (401, HTML, PAGE),
    "forbidden": (403, JSON, b'{"detail": "no"}'),
    "bad gateway": (502, HTML, PAGE),
    "error": (500, "text/plain", b"Internal Server Error"),
}

REFUSED = {"no login", "forbidden"}
# Prefect says the same of a pool that does not exist.
FOR_ROUNDS = [answer for answer in [*ANSWERS, "closed"] if answer != "no route"]
# Only a stranger's API.
FOR_OWN = [answer for answer in [*ANSWERS, "closed"] if answer != "deep"]
AWAY = {"bad gateway", "error", "closed"}
SAMPLE = {"page", "no route", "redirect", "no login", "bad gateway"}
"""Answers that `make test` shows to each command; the rounds meet all of them."""


def sampled(answers: list[str]) -> list[Any]:
    rest = pytest.mark.long
    return [answer if answer in SAMPLE else pytest.param(answer, marks=rest) for answer in answers]


class WrongProxy:
    """Proxy of `far`; with `answer` set, it answers itself. `asked` are the paths of its requests."""

    def __init__(self, far: str = "") -> None:
        self.answer, self.location, self.dates = "", "", ""
        self.asked: list[str] = []
        owner = self

        class Proxy(Handler):
            def answer(self) -> None:
                owner.asked.append(self.path)
                body = self.body()
                if owner.answer == "closed":
                    self.close_connection = True
                    return
                if owner.answer:
                    self._say(*ANSWERS[owner.answer])
                    return
                parts = urlsplit(far)
                connection = HTTPConnection(parts.netloc, timeout=300)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                self._say(answer.status, answer.getheader("Content-Type") or "", answer.read())
                connection.close()

            def _say(self, status: int, kind: str, body: bytes) -> None:
                self.send_response_only(status)
                self.send_header("Date", owner.dates or self.date_time_string())
                if kind:
                    self.send_header("Content-Type", kind)
                if 300 <= status < 400:
                    self.send_header("Location", owner.location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = Server(Proxy)
        self._server.start()
        self.address, self.stop = self._server.url, self._server.stop


@pytest.fixture
def elsewhere() -> Iterator[WrongProxy]:
    """Return a machine that only the controller reaches."""
    server = WrongProxy()
    ANSWERS["secret"] = (200, JSON, f'{{"detail": "{SECRET}"}}'.encode())
    server.answer = "secret"
    yield server
    server.stop()


@pytest.fixture
def proxy(client: SyncPrefectClient, elsewhere: WrongProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[WrongProxy]:
    """Return a proxy of the stock server; nothing that it answers leads anybody elsewhere."""
    monkeypatch.setenv("PLUMBLINE_API_KEY_AZURE", "plumbline:tests")
    server = WrongProxy(str(client.api_url))
    server.location = f"{elsewhere.address}/latest/meta-data"
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        yield server
    server.stop()
    assert server.asked
    assert elsewhere.asked == []


def with_answer(proxy: WrongProxy, answer: str) -> None:
    proxy.answer = answer
    if answer == "redirect of nothing":
        proxy.location = "http://[::1"


class Order:
    """Order of a worker."""

    def __init__(self, key: str, attempt: int) -> None:
        self.platform, self.record_id = key, f"{key}-{attempt}"


def orchestrator_of(apis: platform_apis.PlatformApis, suite: Suite) -> PrefectOrchestrator[Any]:
    def start(order: Order, _: str) -> Any:
        return start_run(apis, order.platform, "plumbline-training/none", parameters={}, name="n")

    def nothing(_: Order) -> None:
        return None

    pools = {name: platform.work_pool for name, platform in suite.platforms.items()}
    return PrefectOrchestrator(apis, suite.name, pools, start=start, orders=Order, recorded=nothing)


def with_api(suite: Suite, api: str) -> Suite:
    """Return the suite with `api` for its platform azure."""
    platforms = {name: platform.model_dump(mode="json") for name, platform in suite.platforms.items()}
    platforms["azure"]["api"] = api
    return suite.replace(platforms=platforms)


def job(platform: str) -> Job:
    return Job(key=platform, platform=platform, retries=0, start_seconds=5, run_seconds=5)


@pytest.mark.first(3)
@pytest.mark.parametrize("answer", FOR_ROUNDS)
def test_an_api_that_answers_wrongly_is_away_and_ends_no_others_round(
    client: SyncPrefectClient, suite: Suite, proxy: WrongProxy, answer: str
) -> None:
    pool = suite.platforms["aws"].work_pool
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=pool))
    client.send_worker_heartbeat(pool, "w", heartbeat_interval_seconds=30)
    with open_apis(with_api(suite, f"{proxy.address}/api")) as apis:
        orchestrator = orchestrator_of(apis, suite)
        with_answer(proxy, answer)
        clocks = platform_apis.platform_clocks(apis, ["aws", "azure"])
        assert abs((clocks["azure"]() - clocks["aws"]()).total_seconds()) < 60
        assert orchestrator.online(["azure", "aws"]) == {"azure": None, "aws": True}
        assert orchestrator.find([("azure", 0)]) is None
        assert orchestrator.find([("aws", 0)]) == []
        assert orchestrator.start([(job("azure"), 0)]) == {}
        # Of a run that it knew before it answered so.
        orchestrator._ids[("azure", 0)], orchestrator._platforms[("azure", 0)] = uuid4(), "azure"
        assert orchestrator.observe([("azure", 0)]) == {}
        orchestrator.cancel([("azure", 0)])


@pytest.mark.parametrize("date", ["31 Feb 2026 25:61:61 GMT", "31 Dec 9999 23:59:59 GMT", "01 Jan 0001 00:00:00 GMT"])
def test_an_impossible_date_of_one_api_ends_no_others_round(suite: Suite, proxy: WrongProxy, date: str) -> None:
    proxy.dates = date
    with open_apis(with_api(suite, f"{proxy.address}/api")) as apis:
        clocks = platform_apis.platform_clocks(apis, ["aws", "azure"])
    assert abs((clocks["azure"]() - clocks["aws"]()).total_seconds()) < 60


@pytest.mark.first(2)
@pytest.mark.parametrize("answer", sampled([*ANSWERS, "closed"]))
def test_the_doctor_says_what_answers_instead_of_a_platforms_api(
    suite: Suite, proxy: WrongProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    with_answer(proxy, answer)
    path = write_suite(with_api(suite, f"{proxy.address}/api"), tmp_path)
    main(["doctor", str(path)])
    shown = capsys.readouterr()
    (line,) = [line for line in shown.out.splitlines() if line.startswith("FAIL Prefect API of azure")]
    assert kind_of(line) == expected(answer)
    assert f"FAIL aws: worker: work pool {suite.platforms['aws'].work_pool} does not exist" in shown.out
    assert "defect of Plumbline" not in shown.out + shown.err
    assert SECRET not in shown.out + shown.err


@pytest.mark.first(2)
@pytest.mark.parametrize("answer", sampled(FOR_OWN))
def test_the_suites_own_api_is_not_prefect_or_refuses_or_is_away(
    suite: Suite, proxy: WrongProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    with_answer(proxy, answer)
    path = write_suite(suite, tmp_path)
    with temporary_settings({PREFECT_API_URL: f"{proxy.address}/api"}):
        main(["doctor", str(path), "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        (check,) = [each for each in checks if each["where"].startswith("Prefect API") and not each["well"]]
        assert kind_of(check["what"]) == expected(answer)
        assert check["code"] == (3 if answer in AWAY else 2)
        for command in (["run", str(path), "--api"], ["deploy", str(path)]):
            if answer in AWAY:
                continue  # they wait for it
            assert main(command) == 2
            said = capsys.readouterr().err
            assert "defect of Plumbline" not in said
            assert "Traceback" not in said
            assert kind_of(said) == expected(answer)


def expected(answer: str) -> str:
    return "away" if answer in AWAY else "refused" if answer in REFUSED else "not Prefect"


def kind_of(line: str) -> str:
    """Return which of the three a line says; none of them twice."""
    kinds = {"not Prefect": "not Prefect's API", "refused": "wrong credentials", "away": "no answer"}
    (kind,) = [kind for kind, words in kinds.items() if words in line]
    return kind


def error_of(url: str) -> PlumblineError:
    settings = {PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(settings), pytest.raises(PlumblineError) as raised:
        wait_for_api(0.0)
    return raised.value


def test_an_address_without_api_and_https_for_http_are_named(client: SyncPrefectClient) -> None:
    address = str(client.api_url).removesuffix("/").removesuffix("/api")
    of_page = error_of(address)
    assert isinstance(of_page, ConfigurationError)
    assert "/api" in of_page.hint
    of_https = error_of(f"{address.replace('http:', 'https:')}/api")
    assert isinstance(of_https, UnavailableError)
    assert "http://" in of_https.hint
    nobody = error_of("http://127.0.0.1:9/api")
    assert isinstance(nobody, UnavailableError)
    assert "start the server" in nobody.hint
    assert not isinstance(of_page, AccessError)
