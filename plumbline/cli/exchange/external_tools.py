"""Parser of the JSON results of specific benchmark tools. Pure.

asv, Bencher, Conbench, github-action-benchmark, Google Benchmark, Otava and pytest-benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import PurePath
from typing import Any

from plumbline.schema.delimited import data_of
from plumbline.schema.errors import InvalidInputError

Content = Mapping[Any, object]


class AsvRow(dict[str, object]):
    """Result row of asv, where larger values are always worse."""


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
            yield from _otava(item, item["metrics"])
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
        return _of_one_run(document, benchmarks)
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


def _otava(item: Content, metrics: Sequence[object]) -> Iterator[Content]:
    """Yield the rows of one run in Otava's JSON format."""
    time, branch = item.get("timestamp"), field(item.get("attributes"), "branch")
    for metric in metrics:
        yield {"time": time, "metric": field(metric, "name"), "value": field(metric, "value"), "branch": branch}


def _conbench(item: Content) -> Content:
    """Return the row of one Conbench API benchmark result."""
    tags = item.get("tags")
    named = {str(key): value for key, value in tags.items()} if isinstance(tags, dict) else {}
    case = ", ".join(f"{key}={value}" for key, value in named.items() if key not in ("name", "id"))
    stats = item["stats"]
    return {
        "time": field(item.get("commit"), "timestamp") or item.get("timestamp"),
        "metric": named.get("name"),
        "value": field(stats, "mean"),
        "unit": field(stats, "unit"),
        "platform": _name(item, "hardware"),
        "workload": case,
    }


def _bencher(results: Sequence[object]) -> Iterator[Content]:
    """Yield the rows of `bencher perf`: one metric for each combination of its keys."""
    for result in results:
        of = {name: _name(result, name) for name in ("branch", "testbed", "benchmark", "measure")}
        parameters = field(field(result, "variant"), "parameters")
        chosen = ", ".join(
            f"{name}={value}" for name, value in (parameters.items() if isinstance(parameters, dict) else ())
        )
        unit = field(field(result, "measure"), "units")
        metrics = field(result, "metrics")
        for point in metrics if isinstance(metrics, list) else ():
            value, time = field(field(point, "metric"), "value"), field(point, "start_time")
            workload = f"{of['benchmark']}({chosen})" if chosen else of["benchmark"]
            series = {"platform": of["testbed"], "workload": workload, "branch": of["branch"]}
            yield {"time": time, "metric": of["measure"], "value": value, "unit": unit, **series}


def _of_one_run(document: Content, benchmarks: Sequence[object]) -> Iterator[Content]:
    """Yield the rows of one pytest-benchmark or Google Benchmark run."""
    context = field(document, "context")
    time = document.get("datetime") or field(context, "date")
    machine = field(document.get("machine_info"), "node") or field(context, "host_name")
    for benchmark in benchmarks:
        value, unit = field(field(benchmark, "stats"), "mean"), "s"
        if value is None:
            value, unit = field(benchmark, "real_time"), str(field(benchmark, "time_unit") or "ns")
        if field(benchmark, "run_type") != "aggregate":
            name = field(benchmark, "fullname") or field(benchmark, "name")
            yield {"time": time, "metric": name, "value": value, "unit": unit, "platform": machine}


def _github_action(entries: Content) -> Iterator[Content]:
    """Yield the rows of github-action-benchmark: results of each suite and commit."""
    for suite, runs in entries.items():
        for run in runs if isinstance(runs, list) else ():
            results = field(run, "benches")
            for result in results if isinstance(results, list) else ():
                own = {"metric": field(result, "name"), "value": field(result, "value"), "unit": field(result, "unit")}
                yield {"time": field(run, "date"), "workload": suite, **own}


def field(content: object, key: str) -> object:
    """Return a JSON object's value, or `None` if absent."""
    return content.get(key) if isinstance(content, dict) else None


def _name(content: object, key: str) -> object:
    return field(field(content, key), "name")


def _asv(document: Content, results: Mapping[str, object]) -> Iterator[Content]:
    """Yield the rows of one asv result file (one commit, one machine)."""
    columns = document.get("result_columns")
    place = columns.index("result") if isinstance(columns, list) and "result" in columns else 0
    own = columns.index("params") if isinstance(columns, list) and "params" in columns else 1
    series = {"platform": field(document.get("params"), "machine"), "workload": document.get("env_name")}
    for name, result in results.items():
        values, parameters = result, None
        if isinstance(result, list) and len(result) > place and isinstance(columns, list):
            values, parameters = result[place], result[own] if len(result) > own else None
        elif isinstance(result, dict):
            values, parameters = result.get("result"), result.get("params")
        values = values if isinstance(values, list) else [values]
        sets = [parameter for parameter in parameters or [] if isinstance(parameter, list)] if parameters else []
        names = [f"{name}({', '.join(map(str, chosen))})" if chosen else name for chosen in product(*sets)]
        for metric, value in zip(names, values, strict=False):
            yield AsvRow(time=document.get("date"), metric=metric, value=value, **series)
