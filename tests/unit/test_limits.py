"""The limits of judge, history and rounds stand in one table, each with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import plumbline
from plumbline.schema import limits

ROOT = Path(plumbline.__file__).parent
ROOMS = {"judge", "history", "rounds", "night"}
STATISTICS = {"changepoints.py", "distributions.py", "samples.py"}
"""Modules of published estimators, whose coefficients are definitions."""
UNITS = {0.0, 1.0, 2.0}
HINT = "a number that can change a verdict, a cause or a question stands in schema/limits.py, with its reason below"


def assigned(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each name of a module, and whether a reason follows."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
            yield ast.unparse(target), isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)


def hidden_limits(text: str) -> list[str]:
    """Return the comparisons with a fraction that is written into the code."""
    compared = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare)]
    return [
        ast.unparse(node)
        for node in compared
        if any(
            isinstance(leaf, ast.Constant) and type(leaf.value) is float and leaf.value not in UNITS
            for leaf in ast.walk(node)
        )
    ]


def test_no_decision_compares_with_a_number_of_its_own() -> None:
    decide = [path for path in sorted(ROOT.rglob("*.py")) if ROOMS & set(path.relative_to(ROOT).parts)]
    assert len(decide) > 50
    for path in decide:
        if path.name not in STATISTICS:
            assert hidden_limits(path.read_text(encoding="utf-8")) == [], f"{path.relative_to(ROOT)}: {HINT}"


@pytest.mark.parametrize("line", ["error > 0.3", "if 8e-3 * size < error: pass", "0 < share <= 0.97"])
def test_a_limit_within_a_comparison_is_found(line: str) -> None:
    assert hidden_limits(line)


def test_the_table_is_short_and_each_limit_has_its_reason() -> None:
    table = list(assigned(Path(limits.__file__)))
    assert all(reason for _, reason in table), HINT
    assert len(table) <= 60
    assert {name for name, _ in table} == {name for name in vars(limits) if name.isupper()}


def test_each_limit_is_used() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py")))
    assert not [name for name, _ in assigned(Path(limits.__file__)) if f"limits.{name}" not in code]
