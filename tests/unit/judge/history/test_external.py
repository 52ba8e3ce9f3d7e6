"""Series of other tools: every value counts as what it is, and each assumption is printed."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from plumbline.cli.exchange.directions import worse_by_name
from plumbline.cli.exchange.external import parse_external
from plumbline.cli.main import main
from plumbline.schema.verdict import exit_code, worst

FIRST = date(2026, 8, 1)


def _noisy(num_nights: int = 110, level: float = 100.0, share: float = 0.01) -> np.ndarray:
    return level * (1 + share * np.random.default_rng(3).normal(size=num_nights))


def _csv(path: Path, rows: list[str], columns: str = "time,metric,value") -> Path:
    path.write_text("\n".join([columns, *rows]), encoding="utf-8")
    return path


def _days(values: np.ndarray, metric: str, form: str = "%Y-%m-%d", before: str = "") -> list[str]:
    return [
        f"{before}{FIRST + timedelta(night):{form}},{metric},{value:.4f}" for night, value in enumerate(values.tolist())
    ]


def _read(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> dict:
    code = main(["history", "--from", str(path), "--json", *options])
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == worst([line["verdict"] for line in document["lines"]])
    assert code == exit_code(document["verdict"])
    return document


@pytest.mark.parametrize("form", ["%Y%m%d", "%Y%m%d.0", "%Y-%m-%d"])
def test_a_compact_date_is_a_date(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    values = _noisy()
    values[90:] *= 0.9
    document = _read(capsys, _csv(tmp_path / "t.csv", _days(values, "throughput", form)))
    assert document["lines"][0]["changes"][0]["since"] == "2026-10-30"
    assert (document["receipt"]["first"], document["receipt"]["last"]) == ("2026-08-01", "2026-11-18")


def test_a_series_that_ended_is_not_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = _noisy()
    rows = [*_days(values[:80], "samples_per_sec"), *_days(values, "samples_per_second")[80:]]
    # A platform that reports some minutes before the other has not ended.
    rows += [row.replace(",", "T02:05:00,", 1).replace("second", "minute") for row in rows if "second" in row]
    document = _read(capsys, _csv(tmp_path / "t.csv", rows))
    assert {line["metric"]: line["reason"] for line in document["lines"]} == {
        "samples_per_sec": "missing",
        "samples_per_second": "quiet",
        "samples_per_minute": "quiet",
    }
    (ended,) = document["receipt"]["ended"]
    assert (ended["metric"], ended["last"], ended["missing_nights"]) == ("samples_per_sec", "2026-10-19", 30)


def test_a_rerun_replaces_the_value_of_its_time_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = _noisy()
    rows = _days(values, "throughput")
    first_tries = _days(values / 2, "throughput")[3::7]
    path = _csv(tmp_path / "t.csv", [*first_tries, *rows])
    document = _read(capsys, path)
    assert document["receipt"]["repeated"] == len(first_tries)
    assert document["lines"][0]["relative_sd"] < 0.02
    assert main(["history", "--from", str(path)]) == 0
    assert "16 rows repeat a time of their series: the last row with a value counts" in capsys.readouterr().out


def test_a_latency_that_rises_is_worse_and_its_direction_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = _noisy(level=30)
    values[95:] *= 1.2
    path = _csv(tmp_path / "t.csv", [*_days(values, "latency_ms"), *_days(values, "quality")])
    worse = [line["changes"][0]["worse"] for line in _read(capsys, path)["lines"]]
    assert worse == [True, False]
    assert main(["history", "--from", str(path), "--higher-is-worse", "quality"]) == 1
    out = capsys.readouterr().out
    assert "higher is worse: latency_ms (by name)" in out
    assert "higher is worse: quality (by option)" in out
    assert "better" not in out
    assert [line["changes"][0]["worse"] for line in _read(capsys, path, "--lower-is-worse", "latency_ms")["lines"]] == [
        False,
        False,
    ]


def test_a_direction_for_no_metric_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _csv(tmp_path / "t.csv", _days(_noisy(), "latency_ms"))
    assert main(["history", "--from", str(path), "--higher-is-worse", "latency"]) == 2
    assert "--higher-is-worse: no metric 'latency' (hint: did you mean `latency_ms`?)" in capsys.readouterr().err
    both = ["--higher-is-worse", "latency_ms", "--lower-is-worse", "latency_ms"]
    assert main(["history", "--from", str(path), *both]) == 2


@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("latency_ms", "higher"),
        ("StepTime", "higher"),
        ("train/loss", "higher"),
        ("eval/accuracy", "lower"),
        ("validation_loss", "higher"),
        ("seconds_per_step", "higher"),
        ("ms/step", "higher"),
        ("samples_per_sec", "lower"),
        ("tokens/s", "lower"),
        ("GB/s", "lower"),
        ("read_mb_per_second", "lower"),
        ("gpu_memory_gb", "higher"),
        ("bytes/token", "higher"),
        ("tokensPerSecond", "lower"),
        ("eval_accuracy", "lower"),
        ("throughput_us_east", None),
        ("Parse.run (ops/ms)", "lower"),
        ("Parse.run (ops/µs)", "lower"),
        ("Timer.elapsed (ops/us)", "lower"),
        ("Map.throughput (ns/op)", "higher"),
        ("BenchmarkFoo - B/op", "higher"),
        ("BenchmarkFoo - allocs/op", "higher"),
        ("tokens/s/gpu", "lower"),
        ("bits_per_byte", "higher"),
        ("bits_per_second", "lower"),
        ("tokens_per_sample", None),
        ("score_min", None),
        ("quality", None),
    ],
)
def test_a_name_states_a_direction_or_none(name: str, worse: str | None) -> None:
    assert worse_by_name(name) == worse


@pytest.mark.parametrize(
    ("stated", "factor", "code"),
    [
        (("jmh", "ops/ms"), 0.7, 1),
        (("go", "ns/op"), 1.3, 1),
        (("customSmallerIsBetter", "hits/s"), 1.3, 1),
        (("customBiggerIsBetter", "ms"), 0.7, 1),
        (("customBiggerIsBetter", "chunks"), 1.3, 0),
        (("other", "chunks"), 0.7, 1),
        (("other", "chunks"), 1.3, 3),
    ],
)
def test_no_loss_passes_by_a_direction_that_the_file_does_not_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stated: tuple[str, str], factor: float, code: int
) -> None:
    """The file's direction, its unit, its name decide in this order. A change of an assumed direction is no pass."""
    values = _noisy(110)
    values[100:] *= factor
    tool, unit = stated
    runs = [
        {"date": 1785542400000 + 86400000 * day, "tool": tool, "benches": [{"name": "b", "unit": unit, "value": value}]}
        for day, value in enumerate(values.tolist())
    ]
    (tmp_path / "data.json").write_text(json.dumps({"entries": {"Suite": runs}}), encoding="utf-8")
    assert main(["history", "--from", str(tmp_path / "data.json")]) == code
    assert ("direction is assumed" in capsys.readouterr().out) == (code == 3)


@pytest.mark.parametrize(
    ("numbers", "read"),
    [
        (["0,931", "0,9", "1,040"], [0.931, 0.9, 1.04]),
        (["960", "1,040", "1,052"], None),
        (["1,040", "1,052", "1,047"], None),
    ],
)
def test_a_comma_is_decimal_for_a_whole_column_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], numbers: list[str], read: list[float] | None
) -> None:
    lines = [f"2026-08-{day:02}\tspeed\t{number}" for day, number in enumerate(numbers, start=1)]
    path = _csv(tmp_path / "t.tsv", lines, "time\tmetric\tvalue")
    if read is None:
        assert main(["history", "--from", str(path)]) == 4
        assert "may be decimal or between thousands (hint: " in capsys.readouterr().err
        return
    (history,) = parse_external(path.read_text("utf-8"), where="t.tsv").histories
    assert history.values == tuple(read)


def test_a_separator_of_lines_in_a_json_string_ends_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        json.dumps({"time": 86400 * night, "metric": "speed", "value": 1.0, "commit": "a\u2028b"}, ensure_ascii=False)
        for night in range(8)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\r\n".join(lines), encoding="utf-8")
    assert _read(capsys, path)["receipt"]["rows"] == 8


def test_zero_and_negative_values_are_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    throughput, loglik = _noisy(), _noisy(level=-50)
    throughput[107:] = 0
    loglik[90:] -= 10
    path = _csv(tmp_path / "t.csv", [*_days(throughput, "throughput"), *_days(loglik, "loglik")])
    lost, fell = sorted(_read(capsys, path)["lines"], key=lambda line: line["metric"], reverse=True)
    assert (lost["missing"], fell["missing"]) == (0, 0)
    assert lost["changes"][0]["change"] == pytest.approx(-1, abs=0.02)
    assert (fell["changes"][0]["since"], fell["changes"][0]["worse"]) == ("2026-10-30", True)
    assert fell["changes"][0]["change"] == pytest.approx(-0.2, abs=0.02)


def _accepting(capsys: pytest.CaptureFixture[str], path: Path, *accepted: str) -> tuple[str, float]:
    (line,) = _read(capsys, path, *(option for text in accepted for option in ("--accept", text)))["lines"]
    return line["verdict"], line["reference"]


def test_a_level_that_a_person_accepts_is_the_reference_and_its_loss_a_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = _noisy(140)
    values[60:] *= 0.9
    path = _csv(tmp_path / "t.csv", _days(values[:100], "speed", before="aws,"), "platform,time,metric,value")
    assert _accepting(capsys, path)[0] == "drift"
    assert main(["history", "--from", str(path)]) == 1
    assert "if a change is intended: --accept SERIES=DATE" in capsys.readouterr().out
    for name in ("speed", "aws external speed"):
        assert _accepting(capsys, path, f"{name}=2026-09-30") == ("pass", pytest.approx(90, rel=0.01))
    values[110:] *= 0.9
    path = _csv(tmp_path / "t.csv", _days(values[:120], "speed"))
    assert _accepting(capsys, path, "speed=2026-09-30") == ("drift", pytest.approx(90, rel=0.01))


def test_a_gain_is_lost_when_the_first_level_returns_whether_a_person_accepts_it_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = _noisy(140)
    values[60:120] *= 1.05
    path = _csv(tmp_path / "t.csv", _days(values[:119], "speed"))
    assert main(["history", "--from", str(path)]) == 0
    assert "better" in capsys.readouterr().out
    path = _csv(tmp_path / "t.csv", _days(values, "speed"))
    assert _accepting(capsys, path)[0] == "drift"
    assert _accepting(capsys, path, "speed=2026-09-30")[0] == "drift"


@pytest.mark.parametrize(
    ("accepted", "words"),
    [
        ("speed", "--accept: 'speed' has no date (hint: SERIES=DATE, such as throughput=2026-11-22)"),
        ("speed=soon", "--accept: 'speed=soon' has no date"),
        ("sped=2026-08-20", "--accept: no series 'sped' (hint: did you mean `speed`?)"),
        ("speed=2026-08-01", "--accept: 'speed' has no night before, or none since 2026-08-01"),
        ("speed=2026-08-31", "--accept: 'speed' has no night before, or none since 2026-08-31"),
    ],
)
def test_what_cannot_be_accepted_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accepted: str, words: str
) -> None:
    path = _csv(tmp_path / "t.csv", _days(_noisy(30), "speed"))
    assert main(["history", "--from", str(path), "--accept", accepted]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("b  tests speed", None),
        ("b tests speed", ["a"]),
        ("tests: speed", None),
        ("speed", None),
        ("tests main: speed", ["a"]),
    ],
)
def test_a_series_that_ended_is_closed_by_each_printed_name_and_no_other_series_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, left: list[str] | None
) -> None:
    workload = "tests main" if "main" in name else "tests"
    values = _noisy(60)
    rows = [
        *_days(values, "speed", before="a,tests,"),
        *_days(values[:40], "speed", before=f"b,{workload},"),
    ]
    path = _csv(tmp_path / "t.csv", rows, "platform,workload,time,metric,value")
    if left is None:
        assert main(["history", "--from", str(path), "--accept", f"{name}=2026-09-20"]) == 2
        assert "name it: 'b tests speed'" in capsys.readouterr().err or name.startswith("b  ")
    else:
        lines = _read(capsys, path, "--accept", f"{name}=2026-09-20")["lines"]
        assert [(line["platform"], line["segments"]) for line in lines] == [(platform, []) for platform in left]


def test_a_series_that_ended_is_closed_by_a_later_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = _noisy()
    path = _csv(tmp_path / "t.csv", [*_days(values[:80], "throughput_old"), *_days(values, "throughput")])
    assert main(["history", "--from", str(path)]) == 3
    assert "with a later date closes it" in capsys.readouterr().out
    document = _read(capsys, path, "--accept", "throughput_old=2026-10-21")
    assert [(line["metric"], line["verdict"]) for line in document["lines"]] == [("throughput", "pass")]


@pytest.mark.parametrize("cell", ["timeout", "OOM", "#DIV/0!", "12.5k", '"15,012.3"'])
def test_one_cell_that_is_no_number_does_not_take_its_column_out_of_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cell: str
) -> None:
    values = _noisy()
    values[100:] *= 0.7
    rows = [row + ",0.4" for row in _days(values, "aws")]
    header = "time,platform,tokens_per_second,loss"
    assert main(["history", "--from", str(_csv(tmp_path / "t.csv", rows, header))]) == 1
    rows[40] = ",".join([*rows[40].split(",")[:2], cell, "0.4"])
    capsys.readouterr()
    path = _csv(tmp_path / "t.csv", rows, header)
    assert main(["history", "--from", str(path)]) == 4
    assert f"row 42: tokens_per_second: {cell.strip(chr(34))!r} is not a number" in capsys.readouterr().err
    assert [line["metric"] for line in _read(capsys, path, "--metric", "loss")["lines"]] == ["loss"]
    assert main(["history", "--from", str(path), "--metric", "tokens_per_second"]) == 4
    rows[40] = rows[40].replace(cell, "15,012.3")
    assert main(["history", "--from", str(_csv(tmp_path / "t.csv", rows, header))]) == 4
    assert "row 42: has more fields than the header" in capsys.readouterr().err


def test_time_and_metrics_are_chosen_by_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = _noisy()
    values[100:] *= 0.7
    rows = [f"{row},7,{place}" for place, row in enumerate(_days(values, "aws"))]
    path = _csv(tmp_path / "t.csv", rows, "finished,platform,throughput,seed,queue")
    assert main(["history", "--from", str(path)]) == 4
    assert "--time COLUMN" in capsys.readouterr().err
    document = _read(capsys, path, "--time", "Finished")
    assert {line["metric"] for line in document["lines"]} == {"throughput", "queue"}
    (line,) = _read(capsys, path, "--time", "finished", "--metric", "throughput")["lines"]
    assert (line["metric"], line["verdict"]) == ("throughput", "drift")
    assert main(["history", "--from", str(path), "--time", "finished", "--metric", "troughput"]) == 2
    assert "no metric 'troughput'" in capsys.readouterr().err


def test_the_metrics_of_named_runs_are_chosen_by_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table that W&B writes of its runs: each has a name of its own, which is no metric's."""
    values = _noisy()
    values[100:] *= 0.7
    rows = [row.replace(",", f"T02:00:00.000Z,brisk-sky-{night},", 1) for night, row in enumerate(_days(values, "x"))]
    path = _csv(tmp_path / "t.csv", rows, '"Created","Name","Tags","accuracy"')
    assert main(["history", "--from", str(path)]) == 4
    assert "row 2: value: missing (hint: --metric NAME names a column of numbers)" in capsys.readouterr().err
    (line,) = _read(capsys, path, "--metric", "accuracy")["lines"]
    assert (line["metric"], line["nights"], line["verdict"]) == ("accuracy", 110, "drift")


def test_a_metric_of_a_long_table_that_is_not_chosen_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for name in ("speed", "loss") for row in _days(_noisy(), name)]
    path = _csv(tmp_path / "t.csv", rows)
    assert main(["history", "--from", str(path), "--metric", "speed"]) == 0
    assert "ignored columns and metrics: loss" in capsys.readouterr().out


def test_an_accuracy_in_percent_changes_by_a_share_of_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = _noisy(level=91.5, share=0.002)
    values[100:] -= 2.1
    (line,) = _read(capsys, _csv(tmp_path / "t.csv", _days(values, "accuracy")))["lines"]
    assert line["changes"][0]["change"] == pytest.approx(-0.023, abs=0.002)
    assert line["relative_sd"] < 0.01


def test_series_that_change_together_are_named_as_one_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = _noisy()
    values[103:] *= 0.8
    rows = [row for name in ("a", "b", "c") for row in _days(values, name)]
    assert main(["history", "--from", str(_csv(tmp_path / "t.csv", rows))]) == 1
    assert "3 of 3 series changed on the same night" in capsys.readouterr().out


def test_forty_series_of_one_night_are_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = _noisy()
    rows = [_days(values, f"bench_{number:02}_seconds")[0] for number in range(40)]
    summary, xml = tmp_path / "summary.md", tmp_path / "junit.xml"
    path = _csv(tmp_path / "t.csv", rows)
    assert main(["history", "--from", str(path), "--summary", str(summary), "--junit", str(xml)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 6
    assert max(map(len, lines)) < 240
    assert "bench_04_seconds and 35 more (by name)" in lines[1]
    assert "1 night so far: too few for a reference: bench_00_seconds" in lines[2]
    for written in (summary, xml):
        assert written.read_text("utf-8").count("bench") >= 40
        assert "1 nights" not in written.read_text("utf-8")


def test_one_of_a_kind_is_no_plural(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _csv(tmp_path / "t.csv", ["2026-08-01,speed,1"])
    main(["history", "--from", str(path)])
    assert "1 row, 2026-08-01 to 2026-08-01, 1 series" in capsys.readouterr().out
    _csv(path, ["2026-08-01,speed,1", "2026-08-01,speed,2"])
    main(["history", "--from", str(path)])
    assert "1 row repeats a time of its series" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--last", "5"], ["--rebuild"]])
def test_an_option_of_a_suite_is_refused_with_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert main(["history", "--from", str(_csv(tmp_path / "t.csv", _days(_noisy(), "speed"))), *option]) == 2
    assert f"history: {option[0]}: is for a suite" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--time", "--metric", "--accept", "--higher-is-worse", "--lower-is-worse"])
def test_an_option_of_files_is_refused_with_a_suite(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert main(["history", "suite.toml", option, "a=2026-11-22"]) == 2
    assert f"{option}: is for --from FILE" in capsys.readouterr().err


@pytest.mark.parametrize(("num_series", "shared"), [(1, 40), (88, 88)])
def test_one_false_drift_a_year_is_that_of_a_whole_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_series: int, shared: int
) -> None:
    path = _csv(tmp_path / "t.csv", [row for name in range(num_series) for row in _days(_noisy(30), f"metric{name}")])
    assert main(["history", "--from", str(path)]) == 0
    assert f"at most one false drift a year in {shared} series" in capsys.readouterr().out
