"""Parser of the JSON results of specific benchmark tools. Pure.

asv, Bencher, Conbench, github-action-benchmark, Google Benchmark, Otava and pytest-benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import PurePath
from typing import Any

from plumbline.judge.history.metrics import Worse
from plumbline.schema.delimited import data_of
from plumbline.schema.errors import InvalidInputError

Content = Mapping[Any, object]
_WORSE: Mapping[str, Worse] = {"customSmallerIsBetter": "higher", "customBiggerIsBetter": "lower"}
"""Directions that a run of github-action-benchmark states by its `tool`."""


class AsvRow(dict[str, object]):
    """Result row of asv, where larger values are always worse."""


class StatedRow(dict[str, object]):
    """Result row whose file states the direction."""

    worse: Worse | None = None


def objects(document: object, where: str, dates: Mapping[str, object]) -> Iterator[Content]:
    """Yield the rows of any supported tool's JSON document."""
    if isinstance(document, dict):
        rows = _of_tool(document)
        if rows is None:  # a page of Conbench's API, or one row
            data = data_of(document, where)
            rows = objects(data if isinstance(data, list) else [data], where, dates)
        yield from rows
        return
    for place, item in enumerate(document if isinstance(document, list) else [document], start=1):
        if isinstance(item, list) and len(item) == 2:
            yield from _point_of_graph(item, where, dates)
        elif not isinstance(item, dict):
            raise InvalidInputError("not a JSON object", where=f"{where}: row {place}")
        elif isinstance(item.get("metrics"), list):
            yield from _otava(item)
        elif isinstance(item.get("stats"), dict):
            yield _conbench(item)
        else:
            yield item


def _of_tool(document: Content) -> Iterator[Content] | None:
    """Return the rows of a recognised document, else `None`."""
    results, benchmarks, entries = (document.get(key) for key in ("results", "benchmarks", "entries"))
    if isinstance(results, dict) and "commit_hash" in document:
        return _asv(document, results)
    if isinstance(results, list):
        return _bencher(results)
    if isinstance(benchmarks, list):
        return _of_one_run(document)
    return _github_action(entries) if isinstance(entries, dict) else None


def _point_of_graph(item: Sequence[object], where: str, dates: Mapping[str, object]) -> Iterator[Content]:
    """Yield the rows of one point in a published asv graph.

    The file's path names machine, branch, environment and benchmark.
    """
    path = PurePath(where)
    folders = path.parts[path.parts.index("graphs") + 1 : -1] if "graphs" in path.parts[:-1] else ()
    machine = next((name.removeprefix("machine-") for name in folders if name.startswith("machine-")), "")
    others = " ".join(name for name in folders if not name.startswith("machine-"))
    values = item[1] if isinstance(item[1], list) else [item[1]]
    for number, value in enumerate(values, start=1):
        name = f"{path.stem}({number} of {len(values)})" if len(values) > 1 else path.stem
        number_or_interval = value.get("v") if isinstance(value, dict) else value
        series = {"platform": machine, "workload": others}
        time = dates.get(str(item[0]), item[0])
        yield AsvRow(time=time, metric=name, value=number_or_interval, **series)


def _otava(item: Content) -> Iterator[Content]:
    """Yield the rows of one run in Otava's JSON format."""
    series = {"time": at(item, "timestamp"), "branch": at(item, "attributes.branch")}
    for metric in _list(item, "metrics"):
        yield {"metric": at(metric, "name"), "value": at(metric, "value"), **series}


def _conbench(item: Content) -> Content:
    """Return the row of one Conbench API benchmark result."""
    return {
        "time": at(item, "commit.timestamp", "timestamp"),
        "metric": at(item, "tags.name"),
        "value": at(item, "stats.mean"),
        "unit": at(item, "stats.unit"),
        "platform": at(item, "hardware.name"),
        "workload": _settings(item.get("tags"), "name", "id"),
    }


def _bencher(results: Sequence[object]) -> Iterator[Content]:
    """Yield the rows of `bencher perf`: one metric for each combination of its keys."""
    for result in results:
        benchmark, chosen = at(result, "benchmark.name"), _settings(at(result, "variant.parameters"))
        series = {
            "metric": at(result, "measure.name"),
            "unit": at(result, "measure.units"),
            "platform": at(result, "testbed.name"),
            "workload": f"{benchmark}({chosen})" if chosen else benchmark,
            "branch": at(result, "branch.name"),
        }
        for point in _list(result, "metrics"):
            yield {"time": at(point, "start_time"), "value": at(point, "metric.value"), **series}


def _of_one_run(document: Content) -> Iterator[Content]:
    """Yield the rows of one pytest-benchmark or Google Benchmark run."""
    machine = at(document, "machine_info.node", "context.host_name")
    series = {"time": at(document, "datetime", "context.date"), "platform": machine}
    for benchmark in _list(document, "benchmarks"):
        if at(benchmark, "run_type") != "aggregate":
            value = at(benchmark, "stats.mean", "real_time")
            unit = (at(benchmark, "time_unit") or "ns") if at(benchmark, "stats.mean") is None else "s"
            yield {"metric": at(benchmark, "fullname", "name"), "value": value, "unit": unit, **series}


def _github_action(entries: Content) -> Iterator[Content]:
    """Yield the rows of github-action-benchmark: results of each suite and commit."""
    for suite in entries:
        for run in _list(entries, suite):
            for result in _list(run, "benches"):
                own = {"metric": at(result, "name"), "value": at(result, "value"), "unit": at(result, "unit")}
                row = StatedRow(time=at(run, "date"), workload=suite, **own)
                row.worse = _WORSE.get(str(at(run, "tool")))
                yield row


def at(content: object, *paths: str) -> object:
    """Return a JSON object's value at the first of these dotted paths that has one, or `None`."""
    for path in paths:
        value = content
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value not in (None, ""):
            return value
    return None


def _list(content: object, key: str) -> list[object]:
    """Return a JSON object's array, empty if absent."""
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, list) else []


def _settings(parameters: object, *left_out: str) -> str:
    """Return the parameters of a benchmark in one text."""
    pairs = parameters.items() if isinstance(parameters, dict) else ()
    return ", ".join(f"{name}={value}" for name, value in pairs if name not in left_out)


def _asv(document: Content, results: Mapping[str, object]) -> Iterator[Content]:
    """Yield the rows of one asv result file (one commit, one machine)."""
    columns = document.get("result_columns")
    series = {"platform": at(document, "params.machine"), "workload": document.get("env_name")}
    for name, result in results.items():
        if isinstance(columns, list) and isinstance(result, list) and result:
            result = dict(zip(columns, result, strict=False))  # noqa: PLW2901 - as older releases write it
        values, parameters = (
            (result.get("result"), result.get("params")) if isinstance(result, dict) else (result, None)
        )
        values = values if isinstance(values, list) else [values]
        sets = [parameter for parameter in parameters or [] if isinstance(parameter, list)]
        names = [f"{name}({', '.join(map(str, chosen))})" if chosen else name for chosen in product(*sets)]
        for metric, value in zip(names, values, strict=False):
            yield AsvRow(time=document.get("date"), metric=metric, value=value, **series)
