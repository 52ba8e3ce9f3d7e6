"""Missed rounds: the watch compares the flow runs that Prefect has scheduled with the rounds that started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Scheduled

from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.central.central_store import start_key
from plumbline.night.deployment import REGRESSION, desired
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.suite import Alert, Schedule, Suite
from plumbline.tasks.prefect_client import deployments
from plumbline.tasks.watch import check_missed_rounds
from tests.commands import run
from tests.flows.alert_nights import NIGHT
from tests.flows.clocks import jumped_clock
from tests.flows.conftest import Server
from tests.flows.small_suite import write_suite
from tests.flows.stubs import Material
from tests.flows.webhook_server import Receiver, receiver

NOBODY_ANSWERS = {PREFECT_API_URL: "http://127.0.0.1:9/api"}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def webhook(_settings: None) -> Iterator[Receiver]:
    with receiver("watch") as item:
        yield item


@pytest.fixture
def nightly(suite: Suite, webhook: Receiver, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Return the suite with a schedule, and the webhook as recipient without a server."""
    monkeypatch.setenv("HOOK", webhook.url)
    alerts = [Alert(on=("missed",), block="apprise-url/watch", address_from="HOOK")]
    return suite.replace(schedule=Schedule(cron="0 2 * * *", grace_seconds=600), alerts=alerts)


def plan(client: SyncPrefectClient, suite: Suite, times: Sequence[datetime], *, has_next: bool = True) -> UUID:
    """Deploy the suite's round alone, and schedule flow runs as Prefect's scheduler does, in its own time."""
    name = f"{REGRESSION}/{suite.name}"
    items = [item for item in desired(suite, controllers="plumbline") if item.name in (name, "plumbline")]
    deployments.apply(client, deployments.plan(client, suite.name, items))
    deployment = client.read_deployment_by_name(name).id
    for time in [*times, *([datetime.now(UTC) + DAY] if has_next else [])]:
        client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=time))
    return deployment


def start(suite: Suite, time: datetime) -> None:
    CentralStore(open_store(suite.store)).put_text(start_key(suite.name, f"r-{time:%d}", time), "")


def test_a_round_that_did_not_start_is_alerted_once(
    client: SyncPrefectClient, nightly: Suite, webhook: Receiver
) -> None:
    nightly = nightly.replace(schedule=Schedule(cron="0 2 * * *", timezone="Europe/Berlin", grace_seconds=600))
    deployment, before = plan(client, nightly, []), datetime(2026, 3, 27, 1, tzinfo=UTC)
    assert check_missed_rounds(nightly, before - DAY) == ("", [])
    # A changed schedule has earlier rounds than those that the watch knows.
    run, _ = [
        client.create_flow_run_from_deployment(deployment, state=Scheduled(scheduled_time=time))
        for time in (before, datetime(2026, 3, 29, tzinfo=UTC))
    ]
    assert check_missed_rounds(nightly, before - HOUR) == ("", [])
    client.set_flow_run_state(run.id, Cancelled(), force=True)  # by a person, or as the suite refuses overlaps
    assert check_missed_rounds(nightly, before + HOUR) == ("", [])
    assert check_missed_rounds(nightly, datetime(2026, 3, 29, 0, 9, tzinfo=UTC)) == ("", [])
    late = datetime(2026, 3, 29, 0, 11, tzinfo=UTC)
    assert check_missed_rounds(nightly, late)[0] == "the round that was due at 2026-03-29 01:00 CET did not start"
    assert check_missed_rounds(nightly, late + 10 * timedelta(minutes=1)) == ("", [])
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {nightly.name}: the nightly round did not run"]


_AHEAD = """import sys
from pathlib import Path

from prefect import flow

from plumbline.schema.suite import read_suite
from plumbline.tasks.open_round import open_round
from plumbline.tasks.watch import check_missed_rounds

suite = read_suite(Path(sys.argv[1]))
print(check_missed_rounds(suite)[0])
flow(lambda: open_round(suite, "ahead") and None, name="opens", validate_parameters=False)()
"""


@pytest.mark.long
@pytest.mark.compiler
def test_a_controllers_clock_a_day_ahead_invents_no_missed_round_and_hides_none(  # noqa: PLR0917 - fixtures
    client: SyncPrefectClient, nightly: Suite, webhook: Receiver, material: Material, server: Server, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    plan(client, nightly, [now - HOUR, now + 12 * HOUR])
    start(nightly, now - HOUR)
    write_specs(CentralStore(open_store(nightly.store)), nightly, {"tiny": material[0]})
    path = write_suite(nightly, tmp_path)
    environment = {**server.environment(tmp_path), "HOOK": webhook.url, **jumped_clock(tmp_path, 86_400.0)}
    assert run(sys.executable, "-c", _AHEAD, path, env=environment).stdout == "\n"
    assert webhook.got == []
    # The next night's round does not start.
    assert "did not start" in check_missed_rounds(nightly, now + 13 * HOUR)[0]


@pytest.mark.long
def test_a_paused_round_is_not_missed_and_after_that_it_is(
    client: SyncPrefectClient, nightly: Suite, webhook: Receiver
) -> None:
    deployment = plan(client, nightly, [NIGHT + day * DAY for day in range(4)])
    start(nightly, NIGHT)
    assert check_missed_rounds(nightly, NIGHT + HOUR) == ("", [])
    client.update_deployment(deployment, DeploymentUpdate(paused=True))
    for day in (1, 2):
        assert check_missed_rounds(nightly, NIGHT + day * DAY + HOUR) == ("", [])
    with temporary_settings(NOBODY_ANSWERS):
        said, (line,) = check_missed_rounds(nightly, NIGHT + 2 * DAY + HOUR)
    assert (said, "the due rounds are unknown: http://127.0.0.1:9/api: no answer" in line) == ("", True)
    client.update_deployment(deployment, DeploymentUpdate(paused=False))
    plan(client, nightly, [NIGHT + 3 * DAY])  # Prefect deletes the planned runs of a paused deployment
    assert check_missed_rounds(nightly, NIGHT + 2 * DAY + 2 * HOUR) == ("", [])
    assert "2026-11-23" in check_missed_rounds(nightly, NIGHT + 3 * DAY + HOUR)[0]
    assert len(webhook.got) == 1


@pytest.mark.long
def test_while_the_server_is_away_the_runs_that_it_had_planned_count(
    client: SyncPrefectClient, nightly: Suite, webhook: Receiver
) -> None:
    plan(client, nightly, [NIGHT, NIGHT + DAY])
    assert check_missed_rounds(nightly, NIGHT - HOUR) == ("", [])
    with temporary_settings(NOBODY_ANSWERS):
        assert "2026-11-20 02:00 UTC" in check_missed_rounds(nightly, NIGHT + HOUR)[0]
        start(nightly, NIGHT + DAY)
        assert check_missed_rounds(nightly, NIGHT + DAY + HOUR)[0] == ""
    assert len(webhook.got) == 1


@pytest.mark.usefixtures("_settings")
def test_without_a_server_the_check_says_that_it_knows_no_due_time(nightly: Suite) -> None:
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        said, (line,) = check_missed_rounds(nightly, NIGHT)
    assert said == ""
    assert line.startswith("the due rounds are unknown: PREFECT_API_URL is not set (hint:")
    said, (line,) = check_missed_rounds(nightly, NIGHT)
    deployment = f"{REGRESSION}/{nightly.name}"
    assert line == f"the due rounds are unknown: {deployment}: is not deployed (hint: run `plumbline deploy SUITE`)"


def test_a_schedule_for_which_prefect_plans_no_round_is_alerted_once(
    client: SyncPrefectClient, nightly: Suite, webhook: Receiver
) -> None:
    nightly = nightly.replace(schedule=Schedule(cron="0 2 30 2 *", grace_seconds=600))  # Prefect takes 30 February
    plan(client, nightly, [NIGHT], has_next=False)
    assert check_missed_rounds(nightly, NIGHT - HOUR) == ("", [])
    start(nightly, NIGHT)
    for minutes in (5, 14, 16, 26):
        assert check_missed_rounds(nightly, NIGHT + timedelta(minutes=minutes)) == ("", [])
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {nightly.name}: no next round is planned"]
    assert "no next round since 2026-11-20 02:05 UTC" in webhook.got[0]["message"]


@pytest.mark.long
def test_the_watch_alerts_though_its_state_is_damaged_and_not_for_ever(
    client: SyncPrefectClient, nightly: Suite, webhook: Receiver, tmp_path: Path
) -> None:
    plan(client, nightly, [NIGHT, NIGHT + DAY])
    document = tmp_path / "central" / "alerts" / f"{nightly.name}.json"
    document.parent.mkdir(parents=True)
    document.write_bytes(b"{")
    grace_over = NIGHT + timedelta(seconds=600)
    for minutes in (-5, 5, 45):
        (line,) = check_missed_rounds(nightly, grace_over + timedelta(minutes=minutes))[1]
        assert f"{nightly.name}.json: not JSON" in line
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {nightly.name}: the nightly round did not run"]
    assert "not JSON" in webhook.got[0]["message"]
    start(nightly, NIGHT + DAY)
    check_missed_rounds(nightly, grace_over + DAY + timedelta(minutes=5))
    assert len(webhook.got) == 1
    assert document.read_bytes() == b"{"  # the next round repairs it


@pytest.mark.long
def test_the_watch_alerts_that_it_cannot_tell_whether_a_round_started(
    client: SyncPrefectClient, nightly: Suite, webhook: Receiver, tmp_path: Path
) -> None:
    plan(client, nightly, [NIGHT])
    (tmp_path / "central").mkdir()
    (tmp_path / "central" / "alerts").write_text("not a folder", encoding="utf-8")
    (tmp_path / "central" / "started").symlink_to("started")  # too many levels of symbolic links
    check_missed_rounds(nightly, NIGHT + timedelta(minutes=15))
    assert [got["title"] for got in webhook.got] == [
        f"[plumbline] {nightly.name}: cannot tell whether the nightly round ran"
    ]
