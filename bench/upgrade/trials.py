"""Count the trials of the upgrade gate's search by shapes of the bench's cases, with answers from a rule.

`python -m bench.upgrade.trials`: changes in 200 random orders, of which given sets fail.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import mean

from plumbline.upgrade.search import Items, TrialAnswer, find_culprits

SHAPES = (
    (4, (1,)), (5, (1,)), (7, (1,)), (9, (1,)), (9, (1, 1, 1)), (12, (1,)), (13, (1,)), (16, (1,)),
    (60, (1,)), (60, (2,)), (60, (3,)), (60, (1, 1)), (60, (1, 1, 1)), (60, (2, 2)),
)  # fmt: skip
"""Number of changes, and sizes of the sets that fail: of the bench's cases, then of a large upgrade."""
ORDERS = 200


def counted(num_changes: int, sizes: tuple[int, ...], order: int) -> tuple[int, bool]:
    """Return the number of trials, and whether exactly the failing sets were named."""
    names = [f"p{number}" for number in range(num_changes)]
    left = random.Random(order).sample(names, num_changes)
    groups = [frozenset(left.pop() for _ in range(size)) for size in sizes]
    asked: list[Items] = []

    def ask(items: Items) -> TrialAnswer:
        asked.append(items)
        return "fails" if any(group <= set(items) for group in groups) else "passes"

    found = find_culprits(names, ask)
    return len(asked), {frozenset(one.items) for one in found.culprits} == set(groups)


def main() -> None:
    """Print and write the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = {}
    for num_changes, sizes in SHAPES:
        runs = [counted(num_changes, sizes, order) for order in range(ORDERS)]
        trials, right = (mean(column) for column in zip(*runs, strict=True))
        name = f"{num_changes} changes, sets of {list(sizes)}"
        result[name] = {"trials": round(trials, 2), "named_exactly": right}
        print(f"{name}: {trials:.2f} trials, {right:.0%} named exactly")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
