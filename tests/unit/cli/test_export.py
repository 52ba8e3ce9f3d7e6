"""`plumbline store export`: each format is opened by its own tool, and a second export adds nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from plumbline.cli.exchange.runs import curves_of
from plumbline.cli.main import main
from plumbline.data.stores import read_bytes
from plumbline.night.central import CentralStore
from plumbline.night.central.outbox import record_key
from plumbline.night.central.series import extend_series
from plumbline.schema.series import JudgedRound
from tests.unit.report.samples import record
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
    argv = ["store", "export", str(tmp_path / "suite.toml"), "--to", "parquet"]
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
    argv = ["store", "export", str(tmp_path / "suite.toml"), "--to", "prometheus"]
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


def with_record(central: CentralStore, index: int = 29) -> str:
    """Put the record of azure's last night, with its curves, into the store; return its id."""
    record_id = f"{night(index)}-azure"
    content = record("azure", record_id=record_id).record
    central.put_text(record_key(record_id), content.model_dump_json())
    return record_id


def test_a_night_is_one_mlflow_run_however_often_it_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415 - takes seconds

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to be made
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    central, _ = filled_store(tmp_path, nights=30)
    unavailable(central, 30)
    record_id = with_record(central)
    argv = ["store", "export", str(tmp_path / "suite.toml"), "--to", "mlflow", "--last", "3"]
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 6
    client = MlflowClient(str(tmp_path / "mlruns"))
    experiment = client.get_experiment_by_name("nightly")

    def runs() -> dict[str, Any]:
        found = client.search_runs([experiment.experiment_id])
        assert len({run.data.tags["plumbline.key"] for run in found}) == len(found)
        return {run.data.tags["plumbline.key"]: run for run in found}

    first = runs()
    assert len(first) == 6
    azure = first[record_id]
    assert azure.info.status == "FINISHED"
    assert azure.info.start_time == round((BEGIN.timestamp() + 29 * 86400) * 1000)
    assert azure.data.params["seed"] == "7"
    assert azure.data.params["learn.steps"] == "300"
    assert azure.data.params["packages.torch"] == "2.13.0"
    assert azure.data.metrics["throughput"] == pytest.approx(557, rel=0.03)
    assert (azure.data.tags["plumbline.verdict"], azure.data.tags["plumbline.causes"]) == ("drift", "software")
    curve = client.get_metric_history(azure.info.run_id, "learn/loss")
    assert [point.step for point in curve] == list(range(300))
    assert curve[299].value == pytest.approx(record("azure").record.evidence.learn.losses[299])
    page = Path(client.download_artifacts(azure.info.run_id, "report.html")).read_text(encoding="utf-8")
    assert page == read_bytes(central.store, f"rounds/nightly/{night(29)}/report.html").decode()
    lost = first[f"{night(30)}/azure"]
    assert (lost.data.tags["plumbline.verdict"], lost.data.metrics, lost.data.params) == ("inconclusive", {}, {})
    # The next evening: one export was ended in between, and a person has retried a round.
    client.update_run(azure.info.run_id, status="RUNNING")
    retried = {night(28): JudgedRound(time=BEGIN.timestamp() + 28 * 86400 + 9000, verdict="pass")}
    extend_series(central, "nightly", "azure", [], judged=retried)
    assert main(argv) == 0
    second = runs()
    assert second.keys() == first.keys()
    assert second[record_id].info.run_id != azure.info.run_id
    assert second[f"{night(28)}-azure"].info.run_id == first[f"{night(28)}-azure"].info.run_id
    assert second[f"{night(28)}-azure"].data.tags["plumbline.verdict"] == "pass"
    assert len(client.get_metric_history(second[f"{night(28)}-azure"].info.run_id, "throughput")) == 1
    assert not (tmp_path / "mlartifacts").exists()


def test_mlflow_is_told_where_to_write_and_a_server_that_is_away_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    filled_store(tmp_path, nights=3)
    argv = ["store", "export", str(tmp_path / "suite.toml"), "--to", "mlflow"]
    for options, code, words in (
        ([], 2, "or set MLFLOW_TRACKING_URI"),
        (["--out", str(tmp_path / "mlruns")], 2, "sqlite:///mlflow.db"),
        (["--out", "gopher://x"], 2, "sqlite:///mlflow.db"),
        (["--out", "http://127.0.0.1:9"], 3, "check that the tracking server answers"),
        (["--out", "x", "--last", "0"], 2, "0 is less than 1"),
    ):
        assert main([*argv, *options]) == code
        err = capsys.readouterr().err.strip()
        assert words in err.splitlines()[-1], err
        assert "Traceback" not in err


def test_a_tracking_server_that_is_away_is_found_before_the_first_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    filled_store(tmp_path, nights=0)
    suite = str(tmp_path / "suite.toml")
    assert main(["store", "export", suite, "--to", "mlflow", "--out", "http://127.0.0.1:9"]) == 3
    assert "check that the tracking server answers" in capsys.readouterr().err


def test_tensorboard_reads_the_nights_and_the_curves_and_a_second_export_adds_nothing(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415 - takes a second
        EventAccumulator,
    )

    central, _ = filled_store(tmp_path, nights=30)
    with_record(central)
    out = tmp_path / "events"
    for _ in range(2):
        assert main(["store", "export", str(tmp_path / "suite.toml"), "--to", "tensorboard", "--out", str(out)]) == 0
    base = out / "azure" / "bert-tiny-reviews"
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"events.out.tfevents.plumbline"}
    nights = EventAccumulator(str(base / "nights"), size_guidance={"tensors": 0}).Reload()
    points = nights.Scalars("throughput")
    assert [point.step for point in points] == list(range(30))
    assert points[29].wall_time == BEGIN.timestamp() + 29 * 86400
    assert points[29].value == pytest.approx(557, rel=0.03)
    words = nights.Tensors("verdict")
    assert words[29].tensor_proto.string_val[0].decode() == f"{night(29)}: drift, software"
    curves = EventAccumulator(str(base / night(29)), size_guidance={"scalars": 0}).Reload()
    assert sorted(curves.Tags()["scalars"]) == ["learn/loss", "probe/gradient_norm", "probe/loss"]
    assert [point.step for point in curves.Scalars("learn/loss")] == list(range(300))
    assert "| seed | `7` |" in curves.Tensors("parameters")[0].tensor_proto.string_val[0].decode()


def test_a_long_curve_keeps_its_ends_and_a_bounded_number_of_points() -> None:
    long = record("azure").record
    learn = long.evidence.learn.replace(losses=tuple(1 / (step + 1) for step in range(250_000)))
    points = curves_of(long.replace(evidence=long.evidence.replace(learn=learn)))["learn/loss"]
    assert len(points) == 1000
    assert (points[0], points[-1]) == ((0, 1.0), (249_999, 1 / 250_000))
    assert [step for step, _ in points] == sorted({step for step, _ in points})
