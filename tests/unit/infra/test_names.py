"""One name stands for one thing: no two classes of the product share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for folder in ("plumbline", "tasks", "flows"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}:
                places[name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
