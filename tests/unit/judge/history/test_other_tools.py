"""Files that other tools ship as their examples: the right verdict, exit code and date (`other_tools/README.md`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plumbline.cli.main import main

SHIPPED = Path(__file__).with_name("other_tools")
GRAPHS = SHIPPED / "asv-tachyon/sample_site/graphs/branch-main/machine-cheetah/python-3.12"


def _judged(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, dict[str, Any]]:
    code = main(["history", "--from", str(path), "--json"])
    return code, json.loads(capsys.readouterr().out)


def _verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {line["metric"]: line["verdict"] for line in document["lines"]}


def test_otava_s_sample_has_the_change_that_its_documentation_shows(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = _judged(capsys, SHIPPED / "otava/sample.csv")
    assert (code, _verdicts(document)) == (1, {"metric1": "pass", "metric2": "drift"})
    unchanged, changed = document["lines"]
    (change,) = changed["changes"]
    assert unchanged["changes"] == []
    assert (change["since"], change["worse"], round(change["change"], 2)) == ("2024-01-07", True, -0.12)
    assert "since 2024-01-07" in changed["sentence"]


def test_otava_s_json_of_two_runs_is_read_and_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = _judged(capsys, SHIPPED / "otava/sample.json")
    (line,) = document["lines"]
    assert (code, line["workload"], line["metric"], line["nights"]) == (3, "external main", "throughput", 2)


def test_asv_s_example_results_have_the_regression_that_asv_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = shutil.copytree(SHIPPED / "asv/example_results", tmp_path / "results")
    assert main(["history", "--from", str(results)]) == 4
    assert "aaaaaaaa-py2.7-Cython-numpy1.8.json: row 1: not JSON" in capsys.readouterr().err
    (results / "cheetah/aaaaaaaa-py2.7-Cython-numpy1.8.json").unlink()
    code, document = _judged(capsys, results)
    assert (code, document["verdict"]) == (1, "drift")
    (line,) = (line for line in document["lines"] if line["metric"] == "time_units.mem_unit")
    (change,) = line["changes"]
    assert (line["verdict"], change["since"], change["before"], change["after"]) == (
        "drift", "2013-10-26", pytest.approx(344), pytest.approx(728),
    )  # fmt: skip
    directions = {direction["metric"]: direction for direction in document["receipt"]["directions"]}
    assert {direction["worse"] for direction in directions.values()} == {"higher"}
    assert directions["params_examples.ParamSuite.track_value"]["source"] == "tool"
    ignored = sorted(Path(name).name for name in document["receipt"]["ignored_files"])
    assert ignored == ["bbbbbbbb-py2.7-Cython-numpy1.8.json", "benchmarks.json", "machine.json"]


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("peakmem_parse", {"peakmem_parse": "drift"}),
        ("time_sort", {"time_sort": "drift"}),
        ("time_keys", {f"time_keys({number} of 3)": "drift" for number in (1, 2, 3)}),
        ("track_count", {"track_count": "pass"}),
    ],
)
def test_a_graph_of_an_asv_site_is_judged_by_its_name(
    name: str, verdicts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _judged(capsys, GRAPHS / f"{name}.json")
    assert (code, _verdicts(document)) == (1 if "drift" in verdicts.values() else 0, verdicts)
    assert {(line["platform"], line["workload"]) for line in document["lines"]} == {
        ("cheetah", "branch-main python-3.12")
    }


def test_a_whole_asv_site_has_the_dates_of_its_index(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = _judged(capsys, SHIPPED / "asv-tachyon/sample_site")
    assert (code, document["receipt"]["first"], document["receipt"]["last"]) == (1, "2023-11-15", "2023-12-14")
    by_name = {line["metric"]: line for line in document["lines"]}
    assert len(by_name) == 6  # and not the summary graph
    assert "since 2023-12-02" in by_name["peakmem_parse"]["sentence"]


@pytest.mark.parametrize(
    ("name", "platform", "metric"),
    [("history", "diana-2-2-4-17179869184", "mean (s)"), ("benchmark", "series", "file-write (s)")],
)
def test_conbench_s_examples_are_read_and_too_few(
    name: str, platform: str, metric: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = _judged(capsys, SHIPPED / f"conbench/{name}.json")
    (line,) = document["lines"]
    assert (code, line["verdict"], line["platform"], line["metric"]) == (3, "inconclusive", platform, metric)


def test_comments_before_the_header_are_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "series.csv"
    path.write_text("# taken from a real benchmark\n# (two lines)\ntime,latency_ms\n2025-01-01,x\n", encoding="utf-8")
    assert main(["history", "--from", str(path)]) == 4
    assert "metric: missing" in capsys.readouterr().err
    path.write_text("# a comment\ntime,metric,value\n2025-01-01,a,x\n", encoding="utf-8")
    assert main(["history", "--from", str(path)]) == 4
    assert "row 3: value: 'x' is not a number" in capsys.readouterr().err


def _action(values: list[float]) -> str:
    runs = [
        {"date": 1785000000000 + 86400000 * night, "benches": [{"name": "step", "value": value, "unit": "ns/iter"}]}
        for night, value in enumerate(values)
    ]
    return "window.BENCHMARK_DATA = " + json.dumps({"lastUpdate": 1, "entries": {"torch": runs}})


@pytest.mark.parametrize("tool", ["action", "pytest", "google", "influx", "tensorboard"])
def test_times_of_other_tools_that_rise_are_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    values = [100.0 + night % 3 + (30 if night >= 60 else 0) for night in range(70)]
    path = tmp_path / "series.json"
    if tool == "action":
        path.write_text(_action(values))
    elif tool in ("influx", "tensorboard"):
        head = "_time,_field,_value" if tool == "influx" else "Wall time,Step,Value"
        middle = "step_ms" if tool == "influx" else "7"
        path.write_text("\n".join([head, *(f"{1785000000 + 86400 * n},{middle},{v}" for n, v in enumerate(values))]))
    else:
        path = tmp_path / "runs"
        path.mkdir()
        for night, value in enumerate(values):
            time = f"2026-{5 + night // 28:02d}-{1 + night % 28:02d}T02:00:00"
            run = {"datetime": time, "benchmarks": [{"fullname": "step", "stats": {"mean": value}}]}
            if tool == "google":
                run = {"context": {"date": time}, "benchmarks": [{"name": "step", "real_time": value}]}
            (path / f"{night}.json").write_text(json.dumps(run))
    options = ["--higher-is-worse", "Value"] if tool == "tensorboard" else []
    assert main(["history", "--from", str(path), *options]) == 1
    assert "drift" in capsys.readouterr().out
