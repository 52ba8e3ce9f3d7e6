"""The judge's limits stand in one table, each with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import plumbline.judge

_ROOM = Path(plumbline.judge.__file__).parent
_OTHERS = ("gates/throughput.py", "gates/throughput_causes.py", "canary.py")
"""Limits of throughput, and the sizes of planted faults."""


def _constants(path: Path) -> Iterator[tuple[str, bool, bool]]:
    """Yield name, whether a fraction is among the values, and whether a reason follows."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
            numbers = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
            reason = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            yield ast.unparse(target), any(isinstance(each, float) for each in numbers), reason


def test_each_limit_stands_in_the_table_with_its_reason() -> None:
    found = {
        str(path.relative_to(_ROOM)): [name for name, is_fraction, _ in _constants(path) if is_fraction]
        for path in sorted(_ROOM.rglob("*.py"))
    }
    assert {name for name, limits in found.items() if limits} <= {"limits.py", *_OTHERS}
    table = list(_constants(_ROOM / "limits.py"))
    assert all(reason for _, _, reason in table)
    assert 30 <= len(table) <= 60
