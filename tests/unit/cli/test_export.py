"""`plumbline export`: every night in a table, and the last round in Prometheus' own parser."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from plumbline.central import CentralStore
from plumbline.central.series import extend_series
from plumbline.cli.main import main
from plumbline.history.series import JudgedRound
from tests.unit.report.site_store import BEGIN, filled_store, night


def unavailable(central: CentralStore, index: int) -> None:
    """Add a round in which azure left no record."""
    judged = {night(index): JudgedRound(time=BEGIN.timestamp() + 86400 * index, verdict="inconclusive")}
    extend_series(central, "nightly", "azure", [], judged=judged)


def test_a_parquet_file_has_every_night_and_those_without_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    central, _ = filled_store(tmp_path, nights=30)
    unavailable(central, 30)
    out = tmp_path / "nights.parquet"
    argv = ["export", str(tmp_path / "suite.toml"), "--to", "parquet"]
    assert main([*argv, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 61
    table = pq.read_table(out)
    assert table.num_rows == 61
    azure = table.filter(pc.field("platform") == "azure")
    assert azure.column("verdict").to_pylist().count("drift") == 11
    last = azure.slice(30).to_pylist()[0]
    assert (last["round"], last["verdict"], last["workload"], last["throughput"]) == (
        night(30), "inconclusive", None, None,
    )  # fmt: skip
    slow = azure.filter(pc.field("verdict") == "drift")
    assert pc.mean(slow.column("throughput")).as_py() == pytest.approx(557, rel=0.01)
    assert {tuple(causes) for causes in slow.column("causes").to_pylist()} == {("software",)}
    assert main(argv) == 2
    assert "export: --out: is missing (hint: name a file)" in capsys.readouterr().err


_LABELS = ("suite", "platform", "workload", "verdict")


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[name] for name in _LABELS if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_the_last_verdict_its_age_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    central, _ = filled_store(tmp_path, nights=30)
    argv = ["export", str(tmp_path / "suite.toml"), "--to", "prometheus"]
    assert main(argv) == 0
    found = samples(capsys.readouterr().out)
    assert found["plumbline_verdict", "nightly", "azure", "drift"] == 1
    assert found["plumbline_verdict", "nightly", "azure", "pass"] == 0
    assert found["plumbline_verdict", "nightly", "aws", "pass"] == 1
    assert found["plumbline_accuracy", "nightly", "aws", "bert-tiny-reviews"] == 0.8047
    assert found["plumbline_throughput", "nightly", "azure", "bert-tiny-reviews"] == pytest.approx(557, rel=0.03)
    assert found["plumbline_last_round_timestamp_seconds", "nightly", "aws"] == BEGIN.timestamp() + 29 * 86400 + 600
    # Tonight azure left no record: last night's numbers are not tonight's.
    unavailable(central, 30)
    out = tmp_path / "plumbline.prom"
    assert main([*argv, "--out", str(out)]) == 0
    found = samples(out.read_text())
    assert found["plumbline_verdict", "nightly", "azure", "inconclusive"] == 1
    assert not {key for key in found if key[0] == "plumbline_throughput" and "azure" in key}
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
