"""The limits of judge, history and rounds stand in one table, each with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import plumbline
from plumbline import limits

ROOT = Path(plumbline.__file__).parent
ROOMS = ("judge", "history", "rounds")
OTHERS: dict[str, dict[str, str]] = {
    "sizes of what is read, kept or shown": {
        "history/series.py": "_MOST_JUDGED",
        "history/summary.py": "_NEAR",
        "judge/native.py": "_NUM_NAMED",
        "judge/rungs/data.py": "_NAMED",
        "judge/rungs/model.py": "_NAMED",
        "judge/rungs/optimizer.py": "_NAMED",
        "judge/spec_differences.py": "_MAX_KEYS _MAX_NAMED _MAX_VALUE _MAX_LABELS",
        "judge/whole_parts.py": "_LOGGED_STEPS",
        "judge/whole_rows.py": "_MAX_SHARDS_KEPT",
        "rounds/baselines.py": "_MORE_LOOKS _MOST_CHANGES",
        "rounds/documents.py": "_SECRET_BYTES",
        "rounds/isolation.py": "_MAX_MESSAGE",
        "rounds/plan.py": "_DATE_DIGITS _LONGEST_NAME _NONCE_DIGITS",
        "rounds/recovery.py": "MAX_CRASHES _REPORTED_SECONDS _SILENT_SECONDS _START_SECONDS _UNATTENDED_SECONDS",
        "rounds/reporting.py": "_NIGHTS PRICED_NIGHTS _AT_ONCE _MOST_READ",
        "rounds/row_places.py": "_MAX_SHARD_BYTES _MAX_CHARS",
        "rounds/site.py": "_AT_ONCE",
    },
    "definitions": {
        "history/changepoints.py": "_LONGEST _FLOOR _PASSES",
        "history/detectors.py": "_SPLITS",
        "history/equivalence.py": "_POWER _MOST_RUNS",
        "history/external_values.py": "_UNITS _END",
        "history/allowed.py": "NIGHTS_A_YEAR _DETECTORS",
        "history/paired.py": "_LEAST _MOST",
        "history/quantiles.py": "MEDIAN_DEVIATION MEDIAN_ERROR QUARTILES",
        "history/reference.py": "HUGE",
        "judge/confirm.py": "_TO_WIDEN",
        "judge/gates/throughput_causes.py": "_THROTTLED",
        "judge/rungs/batch.py": "_HIDDEN",
        "rounds/night_cost.py": "_GIB _HOUR",
    },
}
"""Numbers outside of the table that change no verdict, cause or question."""
FORMULAS: dict[str, set[float]] = {
    "history/changepoints.py": {2.5, 3.3, 4.5, 1e-18, 1e-300},
    "history/episodes.py": {1.96, 1e-300},
    "history/equivalence.py": {0.9},
    "history/external.py": {86400.0, 1e-300},
    "history/external_values.py": {1e9, 1e11, 1e14, 1e17},
    "history/lasting.py": {0.5},
    "history/metrics.py": {700.0},
    "history/allowed.py": {1e-6},
    "history/paired.py": {1e-9, 1e-12},
    "history/reference.py": {0.05, 0.6, 0.8, 0.95, 3.29, 1e75},
}
"""Coefficients of estimators, and guards against division by zero and overflow."""
UNITS = {0.0, 1.0, 2.0, 10.0, 1e3, 1e6, 3600.0}
_WHOLE = {"history/quantiles.py"}
HINT = "a number that can change a verdict, a cause or a question stands in plumbline/limits.py, with its reason below"


def assigned(path: Path) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yield each name of a module with its value, and whether a reason follows."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
            yield ast.unparse(target), node.value, isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)


def is_number(value: ast.expr) -> bool:
    """Return whether a value is made of numbers alone."""
    leaves = [node for node in ast.walk(value) if isinstance(node, ast.Constant | ast.Call)]
    return bool(leaves) and all(isinstance(leaf, ast.Constant) and type(leaf.value) in (int, float) for leaf in leaves)


def others(path: Path) -> set[str]:
    """Return the numbers of a module that are no limits."""
    name = path.relative_to(ROOT).as_posix()
    return {number for kind in OTHERS.values() for number in kind.get(name, "").split()}


@pytest.mark.parametrize("room", ROOMS)
def test_no_limit_stands_outside_of_the_table(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        named, known = {name for name, value, _ in assigned(path) if is_number(value)}, others(path)
        assert named <= known, f"{place}: {sorted(named - known)}: {HINT}; any other in OTHERS of this test"
        assert named == known, f"{place}: {sorted(known - named)}: gone, and still in OTHERS of this test"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        numbers = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is float]
        formulas = UNITS | FORMULAS.get(place, set())
        unknown = [(node.value, node.lineno) for node in numbers if node.value not in formulas]
        assert place in _WHOLE or not unknown, f"{place}: {unknown}: {HINT}"


def test_the_table_is_short_and_each_limit_has_its_reason() -> None:
    table = list(assigned(Path(limits.__file__)))
    assert all(reason for _, _, reason in table), HINT
    assert len(table) <= 60
    assert {name for name, _, _ in table} == {name for name in vars(limits) if name.isupper()}


def test_each_module_with_other_numbers_exists() -> None:
    assert all((ROOT / place).is_file() for kind in (*OTHERS.values(), FORMULAS) for place in kind)


def test_each_limit_is_used() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py")))
    assert not [name for name, _, _ in assigned(Path(limits.__file__)) if f"limits.{name}" not in code]
