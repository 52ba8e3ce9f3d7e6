"""The limits of judge, history and rounds stand in one table, each with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import plumbline
from plumbline import limits

ROOT = Path(plumbline.__file__).parent
ROOMS = ("judge", "rounds")
OTHERS: dict[str, dict[str, str]] = {
    "sizes of what is read, kept or shown": {
        "judge/native.py": "_NUM_NAMED",
        "judge/rungs/data.py": "_NAMED",
        "judge/rungs/model.py": "_NAMED",
        "judge/rungs/optimizer.py": "_NAMED",
        "judge/spec_differences.py": "_MAX_KEYS _MAX_NAMED _MAX_VALUE _MAX_LABELS",
        "judge/whole_learn.py": "_LOGGED_STEPS",
        "judge/whole_rows.py": "_MAX_SHARDS_KEPT",
        "rounds/baselines.py": "_MORE_LOOKS _MOST_CHANGES",
        "rounds/claim.py": "_ATTEMPTS",
        "rounds/isolation.py": "_MAX_MESSAGE",
        "rounds/plan.py": "_DATE_DIGITS _LONGEST_NAME _NONCE_DIGITS",
        "rounds/reporting.py": "_NIGHTS PRICED_NIGHTS _AT_ONCE _MOST_READ",
        "rounds/row_places.py": "_MAX_SHARD_BYTES _MAX_CHARS",
        "rounds/secret.py": "_BYTES",
        "rounds/site.py": "_AT_ONCE",
    },
    "definitions": {
        "judge/confirm.py": "_TO_WIDEN",
        "judge/gates/throughput_causes.py": "_THROTTLED",
        "judge/rungs/batch.py": "_HIDDEN",
        "rounds/night_cost.py": "_GIB _HOUR",
    },
}
"""Numbers outside of the table that change no verdict, cause or question."""
UNITS = {0.0, 1.0, 2.0, 10.0, 1e3, 1e6, 3600.0}
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
        named = {name for name, value, _ in assigned(path) if is_number(value)}
        assert named <= others(path), (
            f"{place}: {sorted(named - others(path))}: {HINT}; any other in OTHERS of this test"
        )
        tree = ast.parse(path.read_text(encoding="utf-8"))
        numbers = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is float]
        assert not [(node.value, node.lineno) for node in numbers if node.value not in UNITS], f"{place}: {HINT}"


def test_the_table_is_short_and_each_limit_has_its_reason() -> None:
    table = list(assigned(Path(limits.__file__)))
    assert all(reason for _, _, reason in table), HINT
    assert len(table) <= 60
    assert {name for name, _, _ in table} == {name for name in vars(limits) if name.isupper()}


def test_each_limit_is_used() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py")))
    assert not [name for name, _, _ in assigned(Path(limits.__file__)) if f"limits.{name}" not in code]
