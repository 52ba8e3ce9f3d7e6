"""`plumbline deploy`: idempotent, complete, and never deletes without `--prune`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from plumbline.cli.main import main
from plumbline.local.stack import Stack
from plumbline.night.deployment import UPGRADE_EVENT, desired, suite_parameters
from plumbline.night.rounds import Round
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.schema.extras import resource
from plumbline.schema.suite import Schedule, Suite, read_suite
from plumbline.tasks.doctor import check_server
from plumbline.tasks.prefect_client import deployments
from plumbline.tasks.prefect_client.api import server_errors
from plumbline.tasks.prefect_client.notifications import AppriseUrl
from tests.flows.conftest import file_suite, gpu_template
from tests.flows.small_suite import write_suite
from tests.flows.stubs import Material, deploy


def automations(client: SyncPrefectClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.request("POST", "/automations/filter", json={}).json()
    return found


def verbs(out: str) -> list[str]:
    return [change["verb"] for change in json.loads(out)["changes"]]


def test_deploying_twice_changes_nothing_the_second_time(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AppriseUrl(url="json://127.0.0.1:9/").save("deploy-test", overwrite=True)
    suite = suite.replace(
        schedule=Schedule(cron="0 2 * * *", timezone="Europe/Berlin"),
        alerts=({"on": ("drift", "missed"), "block": "apprise-url/deploy-test"},),
    )
    path = str(write_suite(suite, tmp_path))
    assert main(["deploy", path, "--dry-run", "--json"]) == 0
    loaded = json.loads(capsys.readouterr().out)["changes"]
    # Other tests share the block and the controllers' pool with this one.
    assert {item["verb"] for item in loaded if item["name"] not in ("apprise-url/deploy-test", "plumbline")} == {
        "create"
    }
    assert sum(item["kind"] == "automation" for item in loaded) == 3
    assert client.read_work_pools(limit=200) == [] or suite.platforms["aws"].work_pool not in {
        pool.name for pool in client.read_work_pools(limit=200)
    }
    assert main(["deploy", path, "--json"]) == 0
    first = verbs(capsys.readouterr().out)
    assert main(["deploy", path, "--json"]) == 0
    assert verbs(capsys.readouterr().out) == ["keep"] * len(first)
    own = [item for item in automations(client) if suite.name in item["name"]]
    for item in own:
        client.request("PATCH", "/automations/{id}", json={"enabled": False}, path_params={"id": item["id"]})
    said = [result.what for result in check_server(suite)[0] if not result.well]
    assert said.count("the automation is switched off") == len(own) == 3
    assert main(["deploy", path, "--json"]) == 0
    assert verbs(capsys.readouterr().out).count("change") == 3
    assert all(item["enabled"] for item in automations(client) if suite.name in item["name"])
    nightly = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
    assert [(schedule.schedule.cron, schedule.schedule.timezone) for schedule in nightly.schedules] == [
        ("0 2 * * *", "Europe/Berlin")
    ]


@pytest.mark.long
def test_a_renamed_suite_names_the_old_schedule_and_a_removed_schedule_ends(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nightly = suite.replace(schedule=Schedule(cron="0 2 * * *"))
    assert main(["deploy", str(write_suite(nightly, tmp_path))]) == 0
    assert "is scheduled too" not in capsys.readouterr().err
    renamed = nightly.replace(name=f"{suite.name}-new"[-60:])
    assert main(["deploy", str(write_suite(renamed, tmp_path))]) == 0
    old = f"plumbline-regression/{suite.name}"
    assert f"{old}: is scheduled too, with the same store" in capsys.readouterr().err
    assert main(["deploy", str(write_suite(suite, tmp_path))]) == 0
    assert client.read_deployment_by_name(old).schedules == []
    assert "cron: '0 2 * * *' -> None" in capsys.readouterr().out
    assert main(["deploy", str(write_suite(renamed, tmp_path))]) == 0
    assert "is scheduled too" not in capsys.readouterr().err


@pytest.mark.long
def test_a_changed_suite_changes_what_it_says_and_keeps_what_it_no_longer_names(
    client: SyncPrefectClient, suite: Suite
) -> None:
    deployments.apply(client, deployments.plan(client, suite.name, desired(suite, controllers="ctl")))
    item = suite.replace(
        platforms={"aws": suite.platforms["aws"].model_dump()},
        schedule=Schedule(cron="5 3 * * *", timezone="UTC"),
    )
    changes = deployments.plan(client, suite.name, desired(item, controllers="ctl"))
    output = {change.item.name: change for change in changes}
    assert output[f"plumbline-regression/{suite.name}"].fields["cron"] == (None, "5 3 * * *")
    assert output[f"plumbline-training/{suite.name}-azure"].verb == "extra"
    deployments.apply(client, changes)
    assert client.read_deployment_by_name(f"plumbline-training/{suite.name}-azure").name
    deployments.prune(client, changes)
    left = deployments.plan(client, suite.name, desired(item, controllers="ctl"))
    assert {change.verb for change in left} == {"keep"}


@pytest.mark.long
def test_deploying_again_keeps_what_a_person_set(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = suite.replace(schedule=Schedule(cron="0 2 * * *", timezone="UTC"))
    assert main(["deploy", str(write_suite(suite, tmp_path))]) == 0
    training = client.read_deployment_by_name(f"plumbline-training/{suite.name}-aws")
    nightly = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
    variables = {"env": {"NCCL_DEBUG": "INFO"}}
    client.update_deployment(training.id, DeploymentUpdate(job_variables=variables, concurrency_limit=3))
    client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=False)
    client.update_work_pool(suite.platforms["aws"].work_pool, WorkPoolUpdate(concurrency_limit=4))
    changed = suite.replace(schedule=Schedule(cron="5 3 * * *", timezone="UTC"), dispatch={"quorum": 1})
    assert main(["deploy", str(write_suite(changed, tmp_path))]) == 0
    after = client.read_deployment_by_name(f"plumbline-training/{suite.name}-aws")
    assert after.job_variables == variables
    assert after.global_concurrency_limit.limit == 3
    assert client.read_work_pool(suite.platforms["aws"].work_pool).concurrency_limit == 4
    (schedule,) = client.read_deployment_by_name(f"plumbline-regression/{suite.name}").schedules
    assert (schedule.active, schedule.schedule.cron) == (False, "5 3 * * *")
    capsys.readouterr()
    assert main(["deploy", str(write_suite(changed, tmp_path)), "--json"]) == 0
    assert set(verbs(capsys.readouterr().out)) == {"keep"}


def test_a_deployment_of_another_suite_is_not_taken_over(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(name: str, platform: str) -> str:
        platforms = {platform: suite.platforms["aws"].model_dump()}
        folder = tmp_path / name
        folder.mkdir()
        return str(write_suite(suite.replace(name=name, reference=platform, platforms=platforms), folder))

    assert main(["deploy", named("nightly", "large-aws")]) == 0
    before = client.read_deployment_by_name("plumbline-training/nightly-large-aws")
    path = named("nightly-large", "aws")
    for options in ([], ["--dry-run"]):
        capsys.readouterr()
        assert main(["deploy", path, *options]) == 2
        assert capsys.readouterr().err == (
            "plumbline: nightly-large: plumbline-training/nightly-large-aws: belongs to the suite nightly"
            " (hint: rename nightly-large or its platform; if nightly is gone, `prefect deployment delete"
            " plumbline-training/nightly-large-aws`)\n"
        )
    with pytest.raises(ConfigurationError, match="belongs to the suite nightly"):
        deploy(read_suite(Path(path)))
    after = client.read_deployment_by_name("plumbline-training/nightly-large-aws")
    assert (after.tags, after.updated) == (before.tags, before.updated)
    # Nothing of the second suite was made either.
    with pytest.raises(ObjectNotFound):
        client.read_deployment_by_name("plumbline-regression/nightly-large")


@pytest.mark.long
def test_the_upgrade_event_hands_its_lock_to_the_gate(tmp_path: Path) -> None:
    """On a server of its own: the event speaks to each suite of a server, and other tests would get its platforms."""
    suite = file_suite(tmp_path, "upgrade-event")
    with Stack(suite, tmp_path, say=lambda _: None) as stack:
        stack.servers.wait_for_api()
        settings = {PREFECT_API_URL: stack.api_url, PREFECT_API_AUTH_STRING: stack.login}
        with temporary_settings(settings), get_client(sync_client=True) as client:
            deployments.apply(client, deployments.plan(client, suite.name, desired(suite, controllers="ctl")))
            deployment = client.read_deployment_by_name(f"plumbline-upgrade/{suite.name}")
            of_suite = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
            lock = {"name": "uv.lock", "text": "a = \"1 < 2 & '3'\"\n", "sha256": "0" * 64}
            for payload in ({}, {"lock": lock, "platforms": ["aws"]}):
                given = {"candidate": payload.get("lock", {}), "platforms": payload.get("platforms", [])}
                wanted, started = {**suite_parameters(suite), **given}, []
                deadline = time.monotonic() + 400
                while wanted not in started and time.monotonic() < deadline:
                    # Again: the triggers' service takes up a new automation in its own time.
                    emit_event(UPGRADE_EVENT, resource={"prefect.resource.id": "plumbline.lock.test"}, payload=payload)
                    time.sleep(1)
                    started = [run.parameters for run in client.read_flow_runs(deployment_filter=of_suite, limit=200)]
                assert wanted in started, f"the event started no upgrade with {given}"


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_a_suite_that_names_no_block_of_the_server_is_told(
    suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = suite.replace(alerts=({"on": ("missed",), "block": "apprise-url/missing"},))
    assert main(["deploy", str(write_suite(suite, tmp_path))]) == 2
    output = capsys.readouterr().err
    assert "alerts: the block apprise-url/missing does not exist on the server (hint: create it in Prefect" in output


@pytest.mark.first(1)
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    "case",
    [
        ("apprise-url/bad", "no address at all", "is not an address of the type apprise-url"),
        ("ms-teams-webhook/bad", "https://example.com/secret", "is not an address of the type ms-teams-webhook"),
        (
            "pager-duty-webhook/bad",
            "https://secret",
            "is not an address of PagerDuty (hint: pagerduty://, the integration key, @, the API key",
        ),
        ("discord-webhook/bad", "https://secret", "cannot become a block of the type discord-webhook"),
        ("apprise-url/missing", "", "does not exist on the server (hint: set WHERE to its address"),
    ],
)
def test_an_address_that_makes_no_block_is_told_and_not_shown(
    suite: Suite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, str, str],
) -> None:
    block, address, output = case
    monkeypatch.setenv("WHERE", address)
    suite = suite.replace(alerts=({"on": ("drift",), "block": block, "address_from": "WHERE"},))
    assert main(["deploy", str(write_suite(suite, tmp_path))]) == 2
    error = capsys.readouterr().err
    assert output in error
    assert block in error
    assert not address or address not in error


@pytest.mark.long
def test_a_kubernetes_pool_with_several_workers_is_kept_and_takes_the_suites_deployments(
    client: SyncPrefectClient, suite: Suite, material: Material, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    round_ = Round("night-1", suite, {"tiny": material[0]})
    order = {"order": round_.order(round_.assignments()[1], 0).to_json()}
    template = gpu_template()
    pool, path = suite.platforms["azure"].work_pool, str(write_suite(suite, tmp_path))
    client.create_work_pool(WorkPoolCreate(name=pool, type="kubernetes", base_job_template=template))
    for worker in ("gpu-node-1", "gpu-node-2"):
        # A worker counts as offline after three intervals: the test may take longer than 90 s.
        client.send_worker_heartbeat(pool, worker, heartbeat_interval_seconds=600)
    assert main(["deploy", path]) == 0
    assert f"  work-pool {pool}\n" in capsys.readouterr().out
    kept = client.read_work_pool(pool)
    assert (kept.type, kept.concurrency_limit, kept.base_job_template) == ("kubernetes", None, template)
    training = client.read_deployment_by_name(f"plumbline-training/{suite.name}-azure").id
    # As it is delivered, the template names no image: found by day, not by the first round.
    main(["doctor", path, "--state", str(tmp_path)])
    assert f"FAIL azure: worker: {pool} requires job variables without a value: image" in capsys.readouterr().out
    with pytest.raises(PrefectHTTPStatusError, match="'image' is a required property"):
        client.create_flow_run_from_deployment(training, parameters=order)
    template = gpu_template("registry.example.com/plumbline@sha256:0")
    client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))
    run = client.create_flow_run_from_deployment(training, parameters=order)
    assert run.work_pool_name == pool
    client.delete_flow_run(run.id)
    main(["doctor", path, "--state", str(tmp_path)])
    assert f"ok   azure: worker: gpu-node-1, gpu-node-2 in {pool}" in capsys.readouterr().out


NEVER_FIRES = {
    "61 * * * *": f"'61 * * * *': minute 61 is not in 0 to 59 (hint: {resource('docs/SUITE.md')} lists every key)",
    "every night or day please": (
        'Invalid cron string: "every night or day please"'
        " (hint: five fields, such as '0 2 * * *', and an IANA time zone)"
    ),
}


@pytest.mark.parametrize("cron", NEVER_FIRES)
def test_a_schedule_that_never_fires_is_one_line_and_deploys_nothing(
    client: SyncPrefectClient, suite: Suite, tmp_path: Path, capsys: pytest.CaptureFixture[str], cron: str
) -> None:
    path = write_suite(suite.replace(schedule=Schedule(cron="7 3 * * *")), tmp_path)
    path.write_text(path.read_text().replace("7 3 * * *", cron))
    assert main(["deploy", str(path)]) == 2
    assert capsys.readouterr().err == f"plumbline: {path}: schedule.cron: {NEVER_FIRES[cron]}\n"
    with pytest.raises(ObjectNotFound):
        client.read_deployment_by_name(f"plumbline-regression/{suite.name}")


def test_what_the_server_refuses_is_one_line(client: SyncPrefectClient, suite: Suite) -> None:
    template = {"variables": {"properties": {}, "required": []}, "job_configuration": {"command": "{{ other }}"}}
    with pytest.raises(ConfigurationError, match="Prefect's server: refused the request: HTTP 4"), server_errors():
        client.create_work_pool(WorkPoolCreate(name=f"{suite.name}-bad", type="kubernetes", base_job_template=template))
    with pytest.raises(UnavailableError, match="no answer"), server_errors():
        httpx.get("http://127.0.0.1:9/")
