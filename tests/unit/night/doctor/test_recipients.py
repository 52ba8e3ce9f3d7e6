"""Doctor's check of the alerts' recipients."""

from __future__ import annotations

from pathlib import Path

from plumbline.night.doctor import examine_recipients
from plumbline.schema.alert_event import AlertEvent
from plumbline.schema.suite import Alert, Schedule, Suite, read_suite

ROOT = Path(__file__).resolve().parents[4]
SUITE = read_suite(ROOT / "deployments/suites/local.toml")


def suite(*recipients: tuple[AlertEvent, ...]) -> Suite:
    return SUITE.replace(alerts=[Alert(on=on, block="slack-webhook/team") for on in recipients])


def test_each_event_of_a_round_that_does_not_pass_needs_a_recipient() -> None:
    (result,) = examine_recipients(suite(("drift", "invalid", "recovered", "missed")))
    assert (result.where, result.well, result.code) == ("local: alerts", False, 2)
    assert result.what == "no recipient gets unavailable, unjudged"
    assert "add unavailable, unjudged to `on`" in result.hint
    (result,) = examine_recipients(suite(("unavailable", "unjudged", "missed"), ("invalid",)))
    assert result.what == "no recipient gets drift"


def test_machines_that_may_be_left_on_need_a_recipient() -> None:
    events = ("drift", "invalid", "missed", "unavailable", "unjudged")
    one = suite(events)
    name, platform = next(iter(one.platforms.items()))
    on_machines = {"platforms": {**one.platforms, name: platform.replace(machines="aws://eu-west-1/gpus")}}
    (result,) = examine_recipients(one.replace(**on_machines))
    assert result.what == "no recipient gets left-on"
    (result,) = examine_recipients(suite((*events, "left-on")).replace(**on_machines))
    assert result.well


def test_recipients_may_share_the_events() -> None:
    (result,) = examine_recipients(suite(("drift", "invalid", "missed"), ("unavailable", "unjudged")))
    assert result.well


def test_a_suite_without_recipients_may_rely_on_automations() -> None:
    assert list(examine_recipients(SUITE)) == []
    (result,) = examine_recipients(SUITE.replace(schedule=Schedule(cron="0 2 * * *")))
    assert result.well
    assert "no [[alerts]] recipient" in result.what
