"""Slack, Teams and PagerDuty, with their hosts simulated on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.blocks.notifications import DiscordWebhook, PagerDutyWebHook

from plumbline.cli.main import main
from plumbline.schema.suite import Alert, Suite
from plumbline.tasks.prefect_client.notifications import AppriseUrl, send
from tests.flows.alert_nights import NOBODY, book_of, night
from tests.flows.small_suite import write_suite
from tests.flows.webhook_server import Internet, internet

HOSTS = (
    "discord.com",
    "hooks.slack.com",
    "prod-7.westeurope.logic.azure.com",
    "events.pagerduty.com",
    "events.eu.pagerduty.com",
)
ADDRESSES = {
    "slack-webhook/team": "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    "ms-teams-webhook/team": "https://prod-7.westeurope.logic.azure.com:443/workflows/643e69f83c8944/triggers/manual"
    "/paths/invoke?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=KODuebWbDGYFr0z0eu",
    "pager-duty-webhook/team": "pagerduty://R0123456789ABCDEF@apiKEY/?region=eu",
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Internet]:
    with internet(tmp_path, HOSTS) as item:
        for name, value in item.variables.items():
            monkeypatch.setenv(name, value)
        yield item


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
    path = write_suite(suite.replace(alerts=alerts), tmp_path)
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
    slack, teams, pager = (by_host[host] for host in (HOSTS[1], HOSTS[2], HOSTS[4]))
    assert [len(lot) for lot in (slack, teams, pager)] == [2, 2, 2]
    for content in (slack[0], teams[0], pager[0]):
        text = json.dumps(content)
        shown = ("drift on azure: precision (confirmed)", "TF32 was on", "3.00e-4 relative", "2.00e-6", "new in this")
        assert all(part in text for part in (*shown, "/r/report.html", "night-0"))
    assert all("azure has recovered" in json.dumps(content) for content in (slack[1], teams[1]))
    # All receivers are tried at once, in any order.
    assert next(path for host, path, _ in world.got if host == HOSTS[1]).endswith("FQx")
    assert slack[0]["attachments"][0]["color"] != slack[1]["attachments"][0]["color"]
    assert "TF32 was on\n\nprobe.forward" in teams[0]["attachments"][0]["content"]["body"][-1]["text"]
    assert [item["event_action"] for item in pager] == ["trigger", "resolve"]
    assert pager[0]["dedup_key"] == pager[1]["dedup_key"] == "s/azure"
    assert (pager[0]["payload"]["severity"], pager[0]["routing_key"]) == ("error", "R0123456789ABCDEF")


@pytest.mark.usefixtures("_settings")
def test_a_pager_that_refuses_is_said_without_its_key(world: Internet) -> None:
    PagerDutyWebHook(integration_key="R0123456789ABCDEF", api_key="apiKEY").save("refused", overwrite=True)
    world.answers = [429]
    why = send("pager-duty-webhook/refused", "subject", "body", NOBODY)
    assert "429" in why
    assert "R0123" not in why


TOKEN = "abcdefghij" * 6 + "ABCDEFGH"
REPORT = f"report: https://reports.example.com/night-0/report.html?signature={'f' * 600}"
LONG = "\n".join(
    [
        *(f"cause {number}, likely: [pay](x) @everyone, {'evidence ' * 12}" for number in range(30)),
        "round: night-0",
        REPORT,
        "run: https://prefect.example.com/runs/1",
        "",
        "alert 0123456789abcdef",
    ]
)


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(AppriseUrl(url=f"discord://1234567890/{TOKEN}"), id="apprise"),
        pytest.param(AppriseUrl(url=f"https://discord.com/api/webhooks/1234567890/{TOKEN}"), id="own-address"),
        pytest.param(AppriseUrl(url=f"discord://1234567890/{TOKEN}?format=html"), id="format"),
        pytest.param(AppriseUrl(url=f"discord://1234567890/{TOKEN}?overflow=truncate"), id="truncate"),
        pytest.param(DiscordWebhook(webhook_id="1234567890", webhook_token=TOKEN), id="prefect"),
    ],
)
def test_a_long_alert_reaches_discord_by_each_address_with_its_link_and_without_a_mention(
    world: Internet, block: Block
) -> None:
    """Discord refuses more than 2,000 characters, and shows mentions and Markdown of every message."""
    world.limits["discord.com"] = 2000
    block.save("discord", overwrite=True)
    name = f"{block.get_block_type_slug()}/discord"
    assert send(name, "[plumbline] nightly: drift on aws: @everyone", LONG, NOBODY, event="drift") == ""
    ((_, _, message),) = world.got
    content = message["content"]
    assert REPORT in content
    assert "run: https://prefect.example.com/runs/1" in content
    assert content.rstrip().endswith("alert 0123456789abcdef")
    assert "cause 0, likely" in content
    assert len(content) > 1800
    assert "@everyone" not in content
    assert "](" not in content


@pytest.mark.usefixtures("_settings")
def test_an_address_that_splits_gets_the_whole_alert_in_several_messages(world: Internet) -> None:
    world.limits["discord.com"] = 2000
    AppriseUrl(url=f"discord://1234567890/{TOKEN}?overflow=split").save("split", overwrite=True)
    assert send("apprise-url/split", "subject", LONG, NOBODY, event="drift") == ""
    contents = [message["content"] for _, _, message in world.got]
    assert len(contents) > 2
    assert all(any(f"cause {number}," in content for content in contents) for number in range(30))
