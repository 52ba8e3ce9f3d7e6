"""`history --from` reads what other tools write, and decides with the exit codes of the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from plumbline.cli.main import main

BEGIN = datetime(2025, 1, 1, 3, tzinfo=UTC)
VALUES = 30 * np.exp(np.random.default_rng(5).normal(0, 0.01, 70))
TIMES = [BEGIN + timedelta(days=day) for day in range(70)]


def _otava(values: np.ndarray) -> str:
    rows = [
        f"{time:%Y.%m.%d %-H:%M:%S +0000},{day:07d},{value:.4f},{1e5 / value:.3f}"
        for day, (time, value) in enumerate(zip(TIMES, values.tolist(), strict=True))
    ]
    return "\n".join(["time,commit,latency_ms,ops_per_sec", *rows])


def _epochs(values: np.ndarray) -> str:
    rows = [f"{time.timestamp():.0f},{value}" for time, value in zip(TIMES, values.tolist(), strict=True)]
    return "\n".join(["Time,latency_ms", *rows])


def _conbench(values: np.ndarray) -> str:
    entries = [
        {"benchmark_name": "file-read", "case_text_id": "gzip", "commit_timestamp": f"{time:%Y-%m-%dT%H:%M:%SZ}",
         "mean": value, "unit": "s", "hardware_hash": "m5", "commit_hash": "abc"}
        for time, value in zip(TIMES, values.tolist(), strict=True)
    ]  # fmt: skip
    return json.dumps({"data": entries, "metadata": {"next_page_cursor": None}})


def _bencher(values: np.ndarray) -> str:
    metrics = [
        {"start_time": f"{time:%Y-%m-%dT%H:%M:%SZ}", "metric": {"value": value, "lower_value": None}}
        for time, value in zip(TIMES, values.tolist(), strict=True)
    ]
    result = {"testbed": {"name": "m5"}, "benchmark": {"name": "read"}, "measure": {"name": "Latency", "units": "ns"}}
    return json.dumps({"results": [{**result, "metrics": metrics}]})


def _graph(values: np.ndarray) -> str:
    return json.dumps(
        [[int(time.timestamp() * 1e3), value] for time, value in zip(TIMES, values.tolist(), strict=True)]
    )


FORMATS: dict[str, Callable[[np.ndarray], str]] = {
    "otava": _otava,
    "Conbench": _conbench,
    "Bencher": _bencher,
    "a graph of asv": _graph,
}


def _judged(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict]:
    code = main(["history", "--from", str(path), "--json", *options])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", FORMATS)
def test_a_loss_is_drift_and_quiet_nights_pass_in_every_format(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, lost = tmp_path / "series", VALUES.copy()
    lost[60:] *= 1.1
    path.write_text(FORMATS[name](VALUES), encoding="utf-8")
    code, document = _judged(path, capsys)
    assert (code, document["verdict"], document["receipt"]["first"]) == (0, "pass", "2025-01-01")
    assert {line["nights"] for line in document["lines"]} == {70}
    path.write_text(FORMATS[name](lost), encoding="utf-8")
    code, document = _judged(path, capsys)
    assert (code, document["verdict"]) == (1, "drift")
    assert {line["verdict"] for line in document["lines"]} == {"drift"}
    assert all("since 2025-03-02" in line["sentence"] for line in document["lines"])


def test_a_wide_table_keeps_its_attributes_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "series.csv"
    path.write_text(FORMATS["otava"](VALUES), encoding="utf-8")
    _, document = _judged(path, capsys)
    assert sorted(line["metric"] for line in document["lines"]) == ["latency_ms", "ops_per_sec"]
    assert document["receipt"]["ignored_columns"] == ["commit"]


def test_branches_and_parameters_are_series_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otava's table of several branches, and Bencher's variants of one benchmark: mixed, each hides the other."""
    rows = [
        f"{time:%Y-%m-%d},{branch},{value * factor:.3f}"
        for time, value in zip(TIMES, VALUES.tolist(), strict=True)
        for branch, factor in (("main", 1.0), ("feature", 1.1))
    ]
    table = tmp_path / "branches.csv"
    table.write_text("\n".join(["time,branch,latency_ms", *rows]), encoding="utf-8")
    (result,) = json.loads(_bencher(VALUES))["results"]
    slow = json.loads(_bencher(VALUES * 3))["results"][0] | {"variant": {"parameters": {"size_mb": 16}}}
    variants = tmp_path / "perf.json"
    variants.write_text(json.dumps({"results": [result | {"variant": {"parameters": {}}}, slow]}), encoding="utf-8")
    for path, names in ((table, ["external feature", "external main"]), (variants, ["read", "read(size_mb=16)"])):
        code, document = _judged(path, capsys)
        assert sorted(line["workload"] for line in document["lines"]) == names
        assert {line["nights"] for line in document["lines"]} == {70}
        assert (code, document["receipt"]["repeated"]) == (0, 0)


def test_a_folder_of_asv_results_is_one_series_for_each_benchmark_and_its_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = tmp_path / "results" / "m5"
    machine.mkdir(parents=True)
    (machine / "machine.json").write_text('{"machine": "m5", "version": 1}')
    (tmp_path / "results" / "benchmarks.json").write_text('{"version": 2}')
    (machine / "bbbbbbbb-py3.json").write_text('{"explanation": "no results", "date": 1389280586000, "version": 1}')
    lost = VALUES.copy()
    lost[60:] *= 1.1
    for day, (time, value) in enumerate(zip(TIMES, lost.tolist(), strict=True)):
        document = {
            "commit_hash": f"{day:08x}", "env_name": "py3", "date": int(time.timestamp() * 1e3), "version": 2,
            "params": {"machine": "m5", "ram": "1"}, "result_columns": ["result", "params", "version"],
            "results": {
                "join.time_join": [[value, VALUES[day]], [["'inner'", "'outer'"]], "v1"],
                "x.time_x": [[None], [], "v1"],
            },
        }  # fmt: skip
        (machine / f"{day:08x}-py3.json").write_text(json.dumps(document))
    code, document = _judged(tmp_path / "results", capsys)
    verdicts = {(line["platform"], line["metric"]): line["verdict"] for line in document["lines"]}
    assert verdicts == {
        ("m5", "join.time_join('inner')"): "drift",
        ("m5", "join.time_join('outer')"): "pass",
        ("m5", "x.time_x"): "inconclusive",
    }
    assert code == 1
    ignored = [Path(name).name for name in document["receipt"]["ignored_files"]]
    assert sorted(ignored) == ["bbbbbbbb-py3.json", "benchmarks.json", "machine.json"]
    (machine / "cccccccc-py3.json").write_text('{"commit_hash": "cc", "date": 1389280586000, "results": {')
    assert main(["history", "--from", str(tmp_path / "results"), "--json"]) == 4  # damaged, and named
    assert "cccccccc-py3.json" in capsys.readouterr().err


def test_a_large_loss_is_drift_after_three_nights_and_open_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "series.csv"
    codes = []
    for num_lost in range(5):
        values = VALUES.copy()
        values[70 - num_lost :] *= 1.1
        path.write_text(_epochs(values), encoding="utf-8")
        codes.append(_judged(path, capsys)[0])
    assert codes == [0, 3, 3, 1, 1]


def test_a_single_slow_night_is_open_until_the_next_night(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, codes = tmp_path / "series.csv", []
    for age in range(4):
        values = VALUES.copy()
        values[69 - age] *= 1.1
        path.write_text(_epochs(values), encoding="utf-8")
        codes.append(_judged(path, capsys)[0])
    assert codes == [3, 0, 0, 0]


def test_noise_alone_is_no_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "series.csv"
    codes = []
    for seed in range(40):
        path.write_text(_epochs(30 * np.exp(np.random.default_rng(seed).standard_t(3, 70) / 100)), encoding="utf-8")
        codes.append(_judged(path, capsys)[0])
    assert 1 not in codes
    assert codes.count(3) <= 2


def test_escapes_of_a_file_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = VALUES.copy()
    lost[60:] *= 1.1
    escape = "\x1b]0;owned\x07\x1b[31m"
    series = f"{escape}aws,{escape} latency_ms"
    rows = [f"{time:%Y-%m-%d},{series},{value},x" for time, value in zip(TIMES, lost.tolist(), strict=True)]
    path = tmp_path / "series.csv"
    path.write_text("\n".join([f"time,platform,metric,value,{escape}x", *rows]), encoding="utf-8")
    page, xml, summary = (tmp_path / name for name in ("page.html", "junit.xml", "summary.md"))
    summary.write_text("# tests: passed\n", encoding="utf-8")
    options = ["--html", str(page), "--junit", str(xml), "--summary", str(summary)]
    assert main(["history", "--from", str(path), *options]) == 1
    root = ET.fromstring(xml.read_text())  # noqa: S314 - we made it ourselves
    (case,) = root.iter("testcase")
    assert case[0].tag == "failure"
    assert "step since 2025-" in case[0].text
    assert [root.get(key) for key in ("tests", "failures", "errors")] == ["1", "1", "0"]
    markdown = summary.read_text(encoding="utf-8")
    assert markdown.startswith("# tests: passed\n## ✕ Plumbline history: drift\n")
    assert "0 of 1 series passed." in markdown
    assert "\x1b" not in markdown + xml.read_text(encoding="utf-8")
    html = page.read_text(encoding="utf-8")
    assert "\x1b" not in html
    assert "latency_ms +" in html
    assert "step since 2025-" in html
    assert html.count('role="img"') == 2  # for a desktop and for a phone
    found = capsys.readouterr()
    assert "\x1b" not in found.out + found.err
    assert "\x07" not in found.out + found.err
    path.write_text(f"time,metric,value\n{escape},a,1\n", encoding="utf-8")
    assert main(["history", "--from", str(path)]) == 4
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time,name\n2025-01-01,a\n", "value: missing"),
        ("time,commit\n2025-01-01,abc\n", "metric: missing"),
        ('[{"time": 1, "metric": "a", "value": {}}]', "row 1: value: '{}' is not a number"),
        ("[1, 2]", "row 1: not a JSON object"),
        ('{"time": 1, "metric": "a"}', "row 1: value: missing"),
        ('{"time": ' + "[" * 100_000, "row 1: not JSON"),
        ('{"latency": {"time": {"value": 1}}}', "row 1: time: missing"),
        ("time,metric,value\n2025.13.01 3:00:00 +0100,a,1\n", "is not a time"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "series"
    path.write_text(text, encoding="utf-8")
    assert main(["history", "--from", str(path)]) == 4
    err = capsys.readouterr().err.strip()
    assert words in err
    assert "\n" not in err


def test_a_folder_without_results_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--from", str(tmp_path)]) == 2
    assert "the folder has no *.json file" in capsys.readouterr().err
