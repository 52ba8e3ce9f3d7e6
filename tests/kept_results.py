"""Results of tests, kept in `kept/` beside them: verdicts, causes, places, codes of facts, experiments.

A test of confirmations, rounds or history asserts what it is about; the kept result holds the rest, so that no rule
changes unnoticed. A result is one line of codes and whole numbers, or the test whose result it equals. Sentences have
tests of their own. Measured numbers are asserted where they matter: a kept line has `#` for each, so that a changed
limit fails the tests of this limit alone.
After an intended change, write the results again and read their difference:

    PLUMBLINE_KEEP_VERDICTS=1 python -m pytest tests/unit/judge tests/unit/night/rounds

in one process, and all tests of a file: a file keeps what the run asked for, and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from plumbline.records import LoadedRecord
from plumbline.schema.base import Model

_ROOT = Path(__file__).parents[1]
_IS_WRITING = bool(os.environ.get("PLUMBLINE_KEEP_VERDICTS"))
if _IS_WRITING and "PYTEST_XDIST_WORKER" in os.environ:
    raise RuntimeError("PLUMBLINE_KEEP_VERDICTS: each process would write its own tests alone (leave out -n)")
_MEASURED = re.compile(r"[+-]?(?:\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![.\d])%?|\d+%)")
P = ParamSpec("P")
R = TypeVar("R")
_calls: Counter[tuple[Path, str]] = Counter()
_CODE = re.compile(r"[a-z][\w-]*(?:\.[\w-]+)+(?= )")
_KEPT = re.compile(r"\b[a-z][\w-]*\.[a-z][\w-]*|[+-]?\d[\d.]*(?:e[+-]?\d+)?%?")
"""What is kept of a detail that is a sentence and no fact: its codes and whole numbers."""
_LEFT_OUT = {
    "schema_version", "experiment_id", "unit", "description", "record_id", "metric", "runs_on", "suspects",
}  # fmt: skip
"""Fields that follow from others."""
_SAME = "= "


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, with each result held to the kept one of the running test."""

    @functools.wraps(function)
    def wrapped(*arguments: P.args, **keywords: P.kwargs) -> R:
        return keep(function(*arguments, **keywords))

    return wrapped


def keep(result: R) -> R:
    """Hold a result to the kept one of the running test, or write it; return it."""
    path, test = _running_test()
    place = _calls[(path, test)]
    _calls[(path, test)] += 1
    found = _MEASURED.sub("#", _line(_brief(_plain(result))))
    results = _load(path)
    if _IS_WRITING:
        results[test] = [*results.get(test, [])[:place], found]
        _write(path, results)
        return result
    known = results.get(test, [])
    assert place < len(known), f"result {place} of {test} is not kept: see {__name__}"
    line = _resolved(results, known[place])
    assert line == found, f"result {place}: {line}\nbecame {found}"
    return result


def _resolved(results: Mapping[str, list[Any]], known: str) -> str:
    """Return the line of a kept result."""
    if known.startswith(_SAME):
        place, _, test = known.removeprefix(_SAME).partition(" ")
        return str(results[test][int(place)])
    return known


def _running_test() -> tuple[Path, str]:
    """Return the file of the running test's module, and its name."""
    path, _, test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
    module = _ROOT / path
    return module.parent / "kept" / f"{module.stem}.json", test


@functools.cache
def _load(path: Path) -> dict[str, list[Any]]:
    if _IS_WRITING or not path.is_file():
        return {}
    content: dict[str, list[Any]] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _write(path: Path, results: Mapping[str, list[str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    first: dict[str, str] = {}
    written: dict[str, list[str]] = {}
    for test in sorted(results):
        for place, line in enumerate(results[test]):
            own = f"{_SAME}{place} {test}"
            same = first.setdefault(line, own)
            written.setdefault(test, []).append(line if same == own or len(line) <= len(same) else same)
    path.write_text(json.dumps(written, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def _brief(value: Any) -> Any:
    """Return what decides: a fact as its code, and no field that is empty or follows from others."""
    if isinstance(value, list):
        return [_brief(item) for item in value]
    if isinstance(value, str):
        code = _CODE.match(value) if "=" in value else None
        return code[0] if code else value
    if not isinstance(value, dict):
        return value
    fields = {key: _brief(item) for key, item in value.items() if key not in _LEFT_OUT}
    return {key: item for key, item in fields.items() if item is not False and item not in (None, [], {}, "")}


def _line(value: Any) -> str:
    """Return values as one line; fields of findings, causes and places are known by their order."""
    if isinstance(value, list):
        return " ".join(map(_line, value))
    if isinstance(value, dict):
        is_known = "check" in value or "code" in value or "stage" in value
        return " ".join(_line(item) if is_known else f"{key}={_line(item)}" for key, item in value.items())
    return str(value)


def _plain(value: Any) -> Any:
    """Return JSON values; empty fields are left out, and a record stands for itself by its name."""
    if isinstance(value, LoadedRecord):
        return value.record.record_id
    if isinstance(value, Model):
        value = value.to_json()
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping) and value.keys() == {"code", "values"}:
        return " ".join([value["code"], *(f"{name}={_plain(item)}" for name, item in value["values"].items())])
    if isinstance(value, Mapping):
        plain = {str(key): _plain(item) for key, item in value.items()}
        if isinstance(sentence := value.get("detail"), str):
            plain["detail"] = " ".join(_KEPT.findall(sentence))
        return {key: item for key, item in plain.items() if item not in (None, [], {}, "")}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, type(None))) else str(value)
