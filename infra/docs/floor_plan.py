"""Floor plan of the wings, drawn from the imports into CONTRIBUTING.md: `python infra/docs/floor_plan.py --write`.

A box is a wing with the title of its README. An arrow is an import, folded to wings; an arrow that follows from others
is left out. `flows` and `tasks` share a box.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- floor plan: made from the imports by `make docs` -->\n", "<!-- end of the floor plan -->\n"
_PREFECT = "flows, tasks"
"""Both are what Prefect runs, and only `flows` imports `tasks`."""


def wing_of(module: str) -> str:
    """Return the wing of a module; "" for the package itself and its `__main__`."""
    name = module.split(".")[1] if "." in module else ""
    return _PREFECT if name in ("flows", "tasks") else "" if name.startswith("__") else name


def arrows() -> dict[str, frozenset[str]]:
    """Return the wings that each wing imports, at its top or inside of a function."""
    graph = grimp.build_graph("plumbline", cache_dir=None)
    found: dict[str, set[str]] = {wing: set() for module in graph.modules if (wing := wing_of(module))}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            wing, other = wing_of(module), wing_of(imported)
            if wing and other and wing != other:
                found[wing].add(other)
    return {wing: frozenset(found[wing]) for wing in sorted(found)}


def reach(wings: Mapping[str, frozenset[str]], start: str) -> frozenset[str]:
    """Return the wings that a wing imports, directly or through others; raise `ValueError` for a circle."""
    seen: set[str] = set()
    left = list(wings[start])
    while left:
        wing = left.pop()
        if wing == start:
            raise ValueError(f"{start}: the wings' imports are a circle")
        if wing not in seen:
            seen.add(wing)
            left += wings[wing]
    return frozenset(seen)


def title_of(wing: str) -> str:
    """Return the title of a wing's README, behind its name."""
    folder = ROOT / "flows" if wing == _PREFECT else ROOT / "plumbline" / wing
    return (folder / "README.md").read_text(encoding="utf-8").splitlines()[0].partition(": ")[2]


def drawing() -> str:
    """Return the floor plan as a Mermaid diagram, the upper floors first."""
    wings = arrows()
    below = {wing: reach(wings, wing) for wing in wings}
    boxes, lines = [], []
    for wing in sorted(wings, key=lambda each: (-len(below[each]), each)):
        name = wing.replace(", ", "_")
        boxes.append(f'    {name}["<b>{wing}</b><br>{title_of(wing)}"]')
        implied = frozenset[str]().union(*(below[other] for other in wings[wing]))
        lines += [f"    {name} --> {other}" for other in sorted(wings[wing] - implied)]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *lines, "```", ""])


def with_drawing(text: str) -> str:
    """Return the guide's text with the floor plan of today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{drawing()}{END}{after}"


if __name__ == "__main__":
    guide = GUIDE.read_text(encoding="utf-8")
    if "--write" in sys.argv[1:]:
        GUIDE.write_text(with_drawing(guide), encoding="utf-8")
    else:
        sys.stdout.write(drawing())
