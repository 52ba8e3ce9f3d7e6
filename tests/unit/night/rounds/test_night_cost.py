"""Cost of a night from measured rounds, and the limit that a round honours before it dispatches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.cli.main import main
from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.rounds.night_cost import check_cost, night_costs, total
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import PlatformResult, RoundVerdict
from tests.flows.small_suite import to_toml

RECIPE = {"model": "tiny", "data": "d", "seed": 7, "batch_size": 8, "probe": {"steps": 2}}
AWS = {"work_pool": "a", "data": "s3://d", "outbox": "s3://o", "accelerator": "NVIDIA A10G"}
GCP = {"work_pool": "g", "data": "gs://d", "outbox": "gs://o", "accelerator": "NVIDIA L4", "gpus": 2}


def suite_of(store: str = "s3://central", **more: Any) -> Suite:
    platforms = {"aws": AWS, "gcp": {**GCP, **more.pop("gcp", {})}}
    return Suite.model_validate({
        "name": "nightly", "store": store, "reference": "aws", "platforms": platforms,
        "workloads": {"one": RECIPE, "two": RECIPE}, **more,
    })  # fmt: skip


def night(number: int, hours: float, gib: float = 1.0) -> RoundVerdict:
    result = PlatformResult(verdict="pass", machine_seconds=hours * 3600, record_bytes=int(gib * 2**30))
    return RoundVerdict(
        round=f"2026112{number}-020000-abc", suite="nightly", verdict="pass", platforms={"aws": result, "gcp": result}
    )


def test_the_median_night_is_priced_by_the_table_and_egress_counts_across_clouds() -> None:
    aws, gcp = night_costs(suite_of(), [night(1, 0.5), night(2, 1.0), night(3, 9.0)])
    assert (aws.machine, aws.machine_hours, aws.num_nights) == ("g5.2xlarge", 1.0, 3)
    assert aws.night == pytest.approx(1.212 + 2 * 0.023)
    assert (gcp.gpu_hours, gcp.egress) == (2.0, pytest.approx(0.12))
    assert gcp.night == pytest.approx(0.854 + 0.02 + 0.023 + 0.12)


def test_a_price_of_ones_own_counts_and_without_a_night_the_deadlines_bound_it() -> None:
    aws, gcp = night_costs(suite_of(gcp={"price_per_hour": 10.0, "run_seconds": 1800.0, "workloads": ["two"]}), [])
    assert (gcp.machine, gcp.num_nights, gcp.night) == ("", 0, 5.0)
    assert aws.machine_hours == 4.0  # two workloads of 7,200 s
    # A round without a record measured nothing.
    old = RoundVerdict(round="r", suite="nightly", verdict="pass", platforms={"aws": PlatformResult(verdict="pass")})
    assert night_costs(suite_of(), [old])[0].num_nights == 0


def test_a_round_over_its_limit_is_refused_in_one_line_and_an_unknown_price_too() -> None:
    costs = night_costs(suite_of(), [night(1, 2.0, 0.0)])
    assert total(costs) == pytest.approx(2 * (1.212 + 0.854))
    check_cost(suite_of(dispatch={"max_cost": 4.2}), costs, "nightly")
    with pytest.raises(ConfigurationError) as refused:
        check_cost(suite_of(dispatch={"max_cost": 4.0}), costs, "nightly")
    assert str(refused.value) == (
        "nightly: dispatch.max_cost: a night costs 4.13 USD (aws 2.42, gcp 1.71), more than 4.00"
        " (hint: raise it, or see `plumbline store cost SUITE`)"
    )
    unknown = suite_of(dispatch={"max_cost": 4.0}, gcp={"accelerator": "NVIDIA H999"})
    with pytest.raises(ConfigurationError, match=r"^nightly: platforms.gcp.price_per_hour: is not known"):
        check_cost(unknown, night_costs(unknown, [night(1, 0.1)]), "nightly")


def test_the_command_prints_a_night_by_platform(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = suite_of(f"file://{tmp_path}/central")
    central = CentralStore(open_store(suite.store))
    for verdict in (night(1, 1.0), night(2, 3.0)):
        central.put_round(verdict)
    path = tmp_path / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    assert main(["store", "cost", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["platforms"]["aws"]["machines"] == pytest.approx(2 * 1.212)
    assert printed["night"] == pytest.approx(sum(row["night"] for row in printed["platforms"].values()))
    assert main(["store", "cost", str(path), "--last", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["platform", "machine", "USD/h", "GPU"]
    assert lines[1].split()[:4] == ["aws", "g5.2xlarge", "1.212", "3.00"]
    assert lines[3].startswith("total")
