"""Whole rounds on a real server with failing workers: right verdicts, each record once."""

from __future__ import annotations

import json
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    ArtifactFilterType,
)
from prefect.client.schemas.objects import StateType
from prefect.deployments import run_deployment
from prefect.exceptions import Abort

from plumbline.cli.main import main
from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.flows.regression import regression
from plumbline.judge import compared
from plumbline.judge.walk import Walk
from plumbline.night.alerts import AlertBook
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.deployment import training_deployment
from plumbline.night.dispatch import Limits, idempotency_key, run_jobs
from plumbline.night.rounds import Round
from plumbline.night.rounds.documents import Controller, claim_round, write_specs
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.suite import Alert, Suite
from plumbline.schema.verdict import RoundVerdict
from tests.flows.conftest import Server
from tests.flows.small_suite import write_suite
from tests.flows.stubs import Material, Measurement, StubWorkers, deploy_round, suite_of
from tests.flows.webhook_server import receiver
from tests.said import said


def impatient(suite: Suite, *platforms: str, seconds: float) -> Suite:
    """Return the suite with so long a start for the named platforms, and the others as they are."""
    changed = {name: suite.platforms[name].replace(start_seconds=seconds) for name in platforms}
    return suite.replace(platforms={**suite.platforms, **changed})


def play(
    suite: Suite,
    server: Server,
    material: Material,
    folder: Path,
    kinds: dict[str, str],
    *,
    deployed: bool = False,
    night: str = "20261120",
    measure: Measurement = lambda _: {},
) -> tuple[RoundVerdict, str]:
    """Run one round with stub workers; `kinds` is the first attempt's behaviour, `always` every attempt's."""
    spec, record = material

    def behave(platform: str, attempt: int) -> str:
        kind = kinds.get(platform, "good")
        return kind.removeprefix("always ") if attempt == 0 or kind.startswith("always ") else "good"

    if not deployed:
        deploy_round(suite)
    name = f"{night}-020000-{suite.name}"
    workers = StubWorkers(suite, server.api_url, record, folder / "work", behave, measure=measure)
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": spec})
    with workers:
        state = regression(suite=suite, round_id=name, return_state=True)
    verdict = CentralStore(open_store(suite.store)).get_round(suite.name, name)
    return verdict, f"{state.name}: {state.message}"


def test_equal_records_pass_and_the_ui_shows_it(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "even", 2)
    verdict, state = play(suite, server, material, tmp_path, {})
    assert (verdict.verdict, state) == ("pass", "Completed: pass: p00, p01")
    assert "planted faults found" in verdict.proven
    kept = CentralStore(open_store(suite.store)).list_records()
    assert sorted(kept) == sorted(record for platform in verdict.platforms.values() for record in platform.records)
    report = Path(verdict.report)
    assert 'href="../../../site/even/index.html"' in report.read_text(encoding="utf-8")
    nights = (report.parents[3] / "site/even/index.html").read_text(encoding="utf-8")
    assert f'href="../../rounds/even/{verdict.round}/report.html"' in nights
    assert "p01: pass" in (report.parents[3] / "site/even/platform-p01.html").read_text(encoding="utf-8")
    shown = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(like_="even-%")), limit=10)
    assert {item.key for item in shown} == {f"even-{what}" for what in ("verdict", "findings", "plots", "report")}
    plots = next(str(item.data) for item in shown if item.key == "even-plots")
    assert plots.count("](data:image/svg+xml;base64,") >= 1
    runs = {item.flow_run_id for item in shown}
    progress = ArtifactFilter(
        flow_run_id=ArtifactFilterFlowRunId(any_=runs), type=ArtifactFilterType(any_=["progress"])
    )
    bars = client.read_artifacts(artifact_filter=progress)
    assert [(bar.data, bar.description) for bar in bars] == [(100.0, "done: pass")]
    assert emitted(server, "even", 3) == {"plumbline.platform.pass": 2, "plumbline.round.pass": 1}


def emitted(server: Server, suite: str, count: int) -> dict[str, int]:
    """Return the number of each of a suite's events, once enough exist."""
    names: list[str] = []
    for _ in range(600):
        names = [item["event"] for item in events_of(server, suite)]
        if len(names) >= count:
            break
        time.sleep(0.2)
    return {name: names.count(name) for name in sorted(names)}


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_blind_judge_is_caught_by_the_canary(
    server: Server, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compared, "walk", lambda _: Walk(mismatches=(), rounding=()))
    verdict, state = play(suite_of(tmp_path, "blind", 2), server, material, tmp_path, {})
    assert (verdict.verdict, state.partition(":")[0]) == ("invalid", "Invalid")
    checks = {finding.check for finding in verdict.platforms["p01"].findings if finding.outcome == "invalid"}
    assert checks == {"canary.weights", "canary.batches", "canary.layer-norm-eps"}


def events_of(server: Server, suite: str) -> list[dict[str, Any]]:
    label = {"plumbline.suite": [suite]}
    wanted = {"filter": {"resource": {"labels": label}, "event": {"prefix": ["plumbline."]}}, "limit": 50}
    login = httpx.BasicAuth(*server.login.split(":"))
    answer = httpx.post(f"{server.api_url}/events/filter", json=wanted, timeout=120, auth=login)
    return list(answer.raise_for_status().json()["events"])


def occurred(server: Server, suite: str) -> list[datetime]:
    return [datetime.fromisoformat(item["occurred"]) for item in events_of(server, suite)]


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_failures_of_infrastructure_are_tried_again_and_never_drift(
    server: Server, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = impatient(suite_of(tmp_path, "rough", 10, retries=1), "p05", seconds=20)
    kinds = {
        "p01": "crash", "p02": "crash with record", "p03": "fail", "p04": "always crash", "p05": "always ignore",
        "p06": "store gone", "p07": "token expired", "p08": "always store gone", "p09": "always crash",
    }  # fmt: skip
    monkeypatch.setattr("plumbline.tasks.dispatch.run_jobs", partial(run_jobs, limits=Limits(settle_seconds=1.0)))
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox/p09").write_text("not a folder")
    verdict, state = play(suite, server, material, tmp_path, kinds)
    results = verdict.platforms
    assert (verdict.verdict, state.partition(":")[0]) == ("inconclusive", "Inconclusive")
    passed = ["p00", "p01", "p02", "p03", "p06", "p07"]
    assert [name for name, item in results.items() if item.verdict == "pass"] == passed
    for name, why in (("p06", "no answer within 32 s"), ("p07", "the token has expired")):
        assert results[name].records[0].endswith("-1")
        assert any(f"attempt 1 failed: s3://data: {why}" in said(note.text) for note in results[name].notes)
    assert (results["p08"].verdict, results["p08"].causes) == ("inconclusive", ())
    assert "no answer within 32 s" in results["p08"].unavailable
    assert results["p01"].records[0].endswith("-1")
    assert any(
        "the run's record is complete, though the run crashed" in said(note.text) for note in results["p02"].notes
    )
    assert results["p02"].records[0].endswith("-0")
    assert all("crashed" in results[name].unavailable for name in ("p04", "p09"))
    assert "no worker started the run within 20 s (start_seconds)" in results["p05"].unavailable
    assert emitted(server, "rough", 11) == {
        "plumbline.platform.pass": 6, "plumbline.platform.unavailable": 4, "plumbline.round.inconclusive": 1,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_reference_without_its_store_or_with_last_nights_record_takes_no_other_platform_along(
    server: Server, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "dark-reference", 5, retries=1)
    kinds = {
        "p00": "always store gone", "p01": "always other device", "p02": "always last night",
        "p04": "always misconfigured",
    }  # fmt: skip
    verdict, state = play(suite, server, material, tmp_path, kinds)
    assert {name: item.verdict for name, item in verdict.platforms.items()} == {
        "p00": "inconclusive", "p01": "invalid", "p02": "invalid", "p03": "pass", "p04": "inconclusive",
    }  # fmt: skip
    # Where it alone is missing, the round's exit code is 2.
    unfit = verdict.platforms["p04"]
    assert (unfit.unavailable, unfit.is_misconfigured) == ("the run failed: /opt/env: torch: is not installed", True)
    assert state.startswith("Invalid: invalid: p01: platform.gpus")
    assert "4 processes" in said(verdict.platforms["p01"].findings[0].detail)
    assert "nonce" in said(verdict.platforms["p02"].findings[0].detail)
    kept = CentralStore(open_store(suite.store)).list_records()
    assert not any("p02" in name for name in kept)
    assert emitted(server, "dark-reference", 6) == {
        "plumbline.platform.invalid": 2, "plumbline.platform.pass": 1, "plumbline.platform.unavailable": 2,
        "plumbline.round.invalid": 1,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_platform_that_is_not_deployed_yet_is_unavailable_until_a_person_retries_the_round(
    server: Server, material: Material, tmp_path: Path
) -> None:
    alerts = [Alert(on=("unavailable", "recovered"), block="apprise-url/newcomer")]
    suite = suite_of(tmp_path, "newcomer", 3).replace(alerts=alerts)
    with receiver("newcomer") as webhook:
        deploy_round(suite)
        with get_client(sync_client=True) as client:
            client.delete_deployment(client.read_deployment_by_name(training_deployment(suite.name, "p02")).id)
        first, _ = play(suite, server, material, tmp_path, {}, deployed=True)
        assert first.platforms["p02"].unavailable == "its training is not deployed (hint: run `plumbline deploy SUITE`)"
        assert (first.verdict, first.platforms["p00"].verdict) == ("inconclusive", "pass")
        again, _ = play(suite, server, material, tmp_path, {})
    assert (again.verdict, again.platforms["p00"].records) == ("pass", first.platforms["p00"].records)
    titles = [got["title"].rpartition(": ")[2] for got in webhook.got]
    assert titles == ["p02 is unavailable", "p02 has recovered"]


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_baseline_that_went_bad_in_the_store_is_said_and_the_other_platforms_are_judged(
    server: Server, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "moth", 2)
    first, _ = play(suite, server, material, tmp_path, {})
    central = CentralStore(open_store(suite.store))
    accepted = central.get_record(first.platforms["p01"].records[0], tmp_path / "accepted")
    BaselineBook(central).accept(accepted.record)
    (tmp_path / "central" / "baselines" / material[0].digest / "p01.json").write_bytes(b"{")
    verdict, state = play(suite, server, material, tmp_path, {}, night="20261121", measure=drifting(material))
    assert {name: item.verdict for name, item in verdict.platforms.items()} == {"p00": "pass", "p01": "drift"}
    verdict, state = play(suite, server, material, tmp_path, {}, night="20261122")
    assert {name: item.verdict for name, item in verdict.platforms.items()} == {"p00": "pass", "p01": "invalid"}
    assert "baseline.record" in state
    path = write_suite(suite, tmp_path)
    assert main(["baseline", "accept", str(path), "--platform", "p01"]) == 0
    assert play(suite, server, material, tmp_path, {}, night="20261123")[0].verdict == "pass"


def drifting(material: Material) -> Measurement:
    """Return evidence of p01 as if trained with twice the learning rate."""
    probe = json.loads((material[1] / RECORD_NAME).read_bytes())["evidence"]["probe"]
    probe["learning_rates"] = [rate * 2 for rate in probe["learning_rates"]]
    return lambda order: {"probe": probe} if order["platform"] == "p01" else {}


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_drift_is_alerted_though_the_outbox_takes_no_experiment_and_the_alert_state_is_damaged(
    server: Server, material: Material, tmp_path: Path
) -> None:
    damage = (("outbox/p01", "experiments", "not a folder"), ("central/alerts", "sealed.json", "{"))
    for folder, name, content in damage:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(content, encoding="utf-8")
    with receiver("sealed") as webhook:
        suite = suite_of(tmp_path, "sealed", 2).replace(alerts=[Alert(on=("drift",), block="apprise-url/sealed")])
        verdict, _ = play(suite, server, material, tmp_path, {}, measure=drifting(material))
    cause = verdict.platforms["p01"].causes[0]
    assert (verdict.verdict, cause.code, cause.sure) == ("drift", "schedule", "likely")
    assert "could not be run" in said(cause.tried[0])
    assert [got["title"] for got in webhook.got] == ["[plumbline] sealed: drift on p01: schedule (likely)"]
    note = next(note for note in verdict.notes if "alerts/sealed.json: not JSON" in note)
    assert note in webhook.got[0]["message"]
    book = AlertBook(CentralStore(open_store(suite.store)), "sealed")
    assert book.read().rounds == (verdict.round,)  # the next night repeats nothing
    assert emitted(server, "sealed", 3) == {
        "plumbline.platform.drift": 1, "plumbline.platform.pass": 1, "plumbline.round.drift": 1,
    }  # fmt: skip
    # An error of an alert must not prevent the events.
    assert max(occurred(server, "sealed")) < webhook.times[0]


@pytest.mark.usefixtures("client")
def test_a_round_that_breaks_is_told_also_where_the_central_store_is_the_trouble(
    server: Server, material: Material, tmp_path: Path
) -> None:
    with receiver("broken") as webhook:
        suite = suite_of(tmp_path, "broken", 2).replace(alerts=[Alert(on=("missed",), block="apprise-url/broken")])
        (tmp_path / "central").mkdir()
        for folder in ("started", "alerts"):
            (tmp_path / "central" / folder).write_text("not a folder", encoding="utf-8")
        with pytest.raises(ObjectMissingError):
            play(suite, server, material, tmp_path, {})
    assert [got["title"] for got in webhook.got] == ["[plumbline] broken: a round ended without a verdict"]
    assert "20261120-020000-broken of broken started" in webhook.got[0]["message"]


@pytest.mark.long
def test_what_a_killed_controller_dispatched_does_not_outlive_the_round(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    suite = impatient(suite_of(tmp_path, "again", 3), "p01", "p02", seconds=5)
    round_ = Round(f"20261120-020000-{suite.name}", suite, {"tiny": material[0]})
    order = round_.order(round_.assignments()[1], 0)
    deploy_round(suite)
    name = training_deployment(suite.name, order.platform)
    key = idempotency_key(suite.name, order.record_id)
    run = run_deployment(name, parameters={"order": order.to_json()}, timeout=0, idempotency_key=key)
    verdict, _ = play(suite, server, material, tmp_path, {"p01": "always absent", "p02": "always absent"})
    gone = {name: item.unavailable for name, item in verdict.platforms.items() if item.unavailable}
    assert gone == {
        "p01": "no worker started the run within 5 s (start_seconds)",
        "p02": "no worker came online within 5 s (start_seconds)",
    }
    assert client.read_flow_run(run.id).state_type is StateType.CANCELLED


@pytest.mark.long
def test_a_controller_that_wakes_up_beside_its_successor_publishes_and_alerts_nothing(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    name = "20261120-020000-zombie"
    drifts = drifting(material)
    with receiver("zombie") as webhook:
        suite = suite_of(tmp_path, "zombie", 2).replace(
            alerts=[Alert(on=("drift", "missed"), block="apprise-url/zombie")]
        )
        central = CentralStore(open_store(suite.store))
        claims: list[Controller] = []

        def succeed(order: dict[str, Any]) -> dict[str, Any]:
            """Claim the round as the start after a crash does."""
            if not claims:
                claim = central.read_document(f"rounds/{suite.name}/{name}/controller")
                assert claim is not None
                claims.append(Controller.model_validate_json(claim))
                claim_round(central, suite.name, name, claims[0].replace(start=claims[0].start + 1))
            return drifts(order)

        with pytest.raises(Abort, match="a later start of its controller continues this round"):
            play(suite, server, material, tmp_path, {}, measure=succeed)
    assert webhook.got == []
    assert central.list_rounds() == []
    # The run's state is left to the later start.
    assert client.read_flow_run(UUID(claims[0].flow_run)).state_type is StateType.RUNNING
