"""Results of tests, kept whole in `kept/` beside them: verdicts, causes, places, facts, numbers, experiments.

A test asserts what it is about; the kept result holds the rest, so that no rule or number changes unnoticed. Facts are
kept as codes with values: their sentences have tests of their own.
After an intended change, write the results again and read their difference:

    PLUMBLINE_KEEP_VERDICTS=1 python -m pytest tests/unit/judge tests/unit/history tests/unit/rounds

in one process, and all tests of a file: a file keeps what the run asked for, and nothing else.

Numbers with a point or exponent may differ by 5%: their last digits belong to the processor's matrix products. So does
what is left of a zero.
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

__all__ = ["keep", "kept"]

_ROOT = Path(__file__).parents[1]
_IS_WRITING = bool(os.environ.get("PLUMBLINE_KEEP_VERDICTS"))
if _IS_WRITING and "PYTEST_XDIST_WORKER" in os.environ:
    raise RuntimeError("PLUMBLINE_KEEP_VERDICTS: each process would write its own tests alone (leave out -n)")
_FLOAT = re.compile(r"-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![.\d])")
P = ParamSpec("P")
R = TypeVar("R")
_calls: Counter[tuple[Path, str]] = Counter()


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
    found = _plain(result)
    results = _load(path)
    if _IS_WRITING:
        results[test] = [*results.get(test, [])[:place], found]
        _write(path, results)
        return result
    known = results.get(test, [])
    assert place < len(known), f"result {place} of {test} is not kept: see {__name__}"
    difference = _difference(known[place], found, "result")
    assert difference is None, difference
    return result


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


def _write(path: Path, results: Mapping[str, list[Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = [f"{json.dumps(test)}: [\n{_lines(results[test])}]" for test in sorted(results)]
    path.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def _lines(results: list[Any]) -> str:
    return ",\n".join(json.dumps(one, ensure_ascii=False) for one in results)


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
        return {key: item for key, item in plain.items() if item not in (None, [], {}, "")}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, type(None))) else str(value)


def _difference(known: Any, found: Any, at: str) -> str | None:
    """Return the first difference, or `None`."""
    if isinstance(known, dict) and isinstance(found, dict):
        if known.keys() != found.keys():
            return f"{at}: {sorted(known)} became {sorted(found)}"
        parts = [(f"{at}.{key}", known[key], found[key]) for key in known]
    elif isinstance(known, list) and isinstance(found, list):
        if len(known) != len(found):
            return f"{at}: {known} became {found}"
        parts = [(f"{at}[{place}]", *both) for place, both in enumerate(zip(known, found, strict=True))]
    else:
        return None if _is_same(known, found) else f"{at}: {known!r} became {found!r}"
    return next((one for name, left, right in parts if (one := _difference(left, right, name))), None)


def _is_same(known: Any, found: Any) -> bool:
    if isinstance(known, str) and isinstance(found, str):
        numbers = [[float(number) for number in _FLOAT.findall(text)] for text in (known, found)]
        same_words = _FLOAT.sub("#", known) == _FLOAT.sub("#", found)
        return same_words and all(
            math.isclose(a, b, rel_tol=0.05, abs_tol=1e-15) for a, b in zip(*numbers, strict=True)
        )
    if isinstance(known, float) or isinstance(found, float):
        return isinstance(found, (int, float)) and math.isclose(known, found, rel_tol=0.05, abs_tol=1e-15)
    return type(known) is type(found) and bool(known == found)
