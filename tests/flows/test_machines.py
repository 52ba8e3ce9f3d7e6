"""Machines of a round on moto's server: up inside the round, down after whatever ended it, and alerted if left on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Running

from plumbline.night.deployment import suite_tag
from plumbline.night.machines import open_group
from plumbline.schema.suite import Alert, Suite
from plumbline.tasks.machines import Machines, check_left_on
from plumbline.tasks.open_round import take_over
from plumbline.tasks.prefect_client.notifications import AppriseUrl
from plumbline.tasks.watch import check_missed_rounds
from tests.flows.webhook_server import receiver
from tests.scaling_group import scaling_group

GROUP = "aws://eu-west-1/gpus"
GONE = "aws://eu-west-1/gone"
SECOND = "aws://eu-west-1/second"


@pytest.fixture
def on_machines(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Suite]:
    """Yield the suite with two trainings at once on a group of machines."""
    aws = suite.platforms["aws"].replace(machines=GROUP, concurrency=2)
    with scaling_group(monkeypatch):
        yield suite.replace(platforms={**suite.platforms, "aws": aws})


@pytest.mark.first(1)
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("ending", [ValueError("a defect"), KeyboardInterrupt()], ids=["failure", "ctrl-c"])
def test_machines_are_up_for_a_round_and_down_after_whatever_ends_it(on_machines: Suite, ending: BaseException) -> None:
    sizes = []

    @flow(name="plumbline-regression")
    def round_() -> None:
        take_over(on_machines, "night")
        with Machines(on_machines, "night") as machines:
            machines.keep_up({"aws"})
            sizes.append(open_group(GROUP).size())
            raise ending

    with pytest.raises(type(ending)):
        round_()
    assert (sizes, open_group(GROUP).size()) == ([2], 0)


def _claim_later(suite: Suite) -> None:
    """Claim the round as the start that continues it."""

    @flow(name="plumbline-regression")
    def later() -> None:
        take_over(suite, "night")

    later()


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_start_that_was_taken_for_dead_stops_no_machine_of_the_next_one(on_machines: Suite) -> None:
    @flow(name="plumbline-regression")
    def round_() -> None:
        take_over(on_machines, "night")
        with Machines(on_machines, "night") as machines:
            machines.keep_up({"aws"})
            _claim_later(on_machines)
            machines.keep_up({"azure"})

    round_()
    assert open_group(GROUP).size() == 2


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_group_is_down_while_the_round_judges_and_its_time_is_counted(on_machines: Suite) -> None:
    """The quick platform trains for 10 minutes, the slow one for 50; 5 of judging; one rerun of the quick one."""
    azure = on_machines.platforms["azure"].replace(machines=SECOND)
    suite, sizes = on_machines.replace(platforms={**on_machines.platforms, "azure": azure}), []
    minutes = iter([0, 10, 50, 55, 65])

    @flow(name="plumbline-regression")
    def round_() -> dict[str, float]:
        take_over(suite, "night")
        machines = Machines(suite, "night", clock=lambda: 60.0 * next(minutes))

        def keep_up(*platforms: str) -> None:
            machines.keep_up(platforms)
            sizes.append(tuple(open_group(url).size() for url in (GROUP, SECOND)))

        with machines:
            keep_up("aws", "azure")
            keep_up("azure")
        sizes.append(tuple(open_group(url).size() for url in (GROUP, SECOND)))
        with machines:
            keep_up("aws")
        return machines.seconds_on()

    on = round_()
    assert sizes == [(2, 1), (0, 1), (0, 0), (2, 0)]
    assert open_group(GROUP).size() == 0
    assert on == {"aws": 2 * 20 * 60.0, "azure": 50 * 60.0}


@pytest.mark.long
def test_machines_that_are_left_on_are_alerted_once_a_day(
    client: SyncPrefectClient, on_machines: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)
    with receiver() as webhook:
        monkeypatch.setenv("HOOK", webhook.url)
        AppriseUrl(url=webhook.url).save("hook-machines", overwrite=True)
        alert = Alert(on=("left-on",), block="apprise-url/hook-machines", address_from="HOOK")
        azure = on_machines.platforms["azure"].replace(machines=GONE)
        suite = on_machines.replace(alerts=[alert], platforms={**on_machines.platforms, "azure": azure})

        def watch(time: datetime) -> list[str]:
            unchecked = check_left_on(suite, time)
            return [*unchecked, *check_missed_rounds(suite, time)[1]]

        # What cannot be read is a failure of the watch.
        assert [line.partition(" (")[0] for line in watch(now)] == [f"{GONE}: the Auto Scaling group does not exist"]
        open_group(GROUP).resize(2)

        @flow(name="plumbline-regression")
        def regression() -> None: ...

        tags = ["plumbline-round", suite_tag(suite.name)]
        run = client.create_flow_run(regression, state=Running(), tags=tags)
        watch(now)
        assert webhook.got == []
        client.delete_flow_run(run.id)
        for _ in range(2):
            watch(now)
        (got,) = webhook.got
        assert got["title"] == f"[plumbline] {suite.name}: machines are left on"
        assert "is set to 2, and no round" in got["message"]
        watch(now.replace(day=27))
        assert len(webhook.got) == 2
