"""`python -m bench.faults`: judge the catalogue of faults and controls, and write its table.

`--sample 12` draws 12 faults and 3 controls instead, and prints their results only. Results are kept in
`bench/results/faults.json`, each written as soon as it is known, so that a run of some families renews theirs alone;
`docs/FAULTS.md` is written from them. `--resume` leaves out what the present judge has judged already, and
`--seconds N` begins no entry after N seconds.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.faults.bench import Result, run_all
from bench.faults.benign_pairs import RESULT as PAIRS
from bench.faults.catalogue import FILES, Entry, entries
from bench.faults.report import page, totals_of
from bench.faults.results import FOLDER, judge_digest, read_result, write_result
from bench.faults.wrong_passes import RESULT as ATTEMPTS

RESULTS = FOLDER / "faults.json"
PAGE = FOLDER.parents[1] / "docs" / "FAULTS.md"
SEED = 1
Cell = dict[str, Any]


class Book:
    """The result file, written anew after each result."""

    def __init__(self, path: Path) -> None:
        self.path, self._judge, self._known = path, judge_digest(), read_result(path)
        self._lock, self._began = threading.Lock(), time.perf_counter()
        self._fresh: list[Cell] = []

    def add(self, result: Result) -> None:
        """Keep one result, also on disk."""
        result.judge = self._judge
        with self._lock:
            self._fresh.append(cell_of(result))
            seconds = self._known.get("seconds", 0.0) + time.perf_counter() - self._began
            write_result(self.path, "make faults", merged(self._known["cells"], self._fresh), seconds=round(seconds))

    def is_judged(self, entry: Entry) -> bool:
        """Return whether the present judge has judged this before."""
        key = (entry.name, SEED, self._judge)
        return any((cell["name"], cell["seed"], cell["judge"]) == key for cell in self._known["cells"])


def cell_of(result: Result) -> Cell:
    """Return what is kept of a result; the reason only where the result is not the expected one."""
    rounded = {key: round(getattr(result, key), 3) for key in ("seconds", "judge_seconds")}
    return asdict(result) | rounded | {"why": "" if result.right else result.why[:300]}


def merged(known: Sequence[Cell], fresh: Sequence[Cell]) -> list[Cell]:
    """Replace known results by fresh ones; drop those of entries that are gone."""
    order = {entry.name: place for place, entry in enumerate(entries())}
    cells = {(cell["name"], cell["seed"]): cell for cell in (*known, *fresh) if cell["name"] in order}
    return sorted(cells.values(), key=lambda cell: (order[cell["name"]], cell["seed"]))


def drawn(number: int, draw: int) -> list[Entry]:
    """Draw faults, and a quarter as many controls, in the catalogue's order."""
    chosen = random.Random(draw)
    faults = [entry for entry in entries() if entry.expected]
    controls = [entry for entry in entries() if not entry.expected]
    names = {entry.name for entry in chosen.sample(faults, min(number, len(faults)))}
    names |= {entry.name for entry in chosen.sample(controls, min(number // 4, len(controls)))}
    return [entry for entry in entries() if entry.name in names]


def _asked(args: argparse.Namespace) -> list[Entry]:
    if args.sample:
        return drawn(args.sample, args.draw)
    every = not args.family and not args.name
    return [entry for entry in entries() if every or entry.family in args.family or entry.name in args.name]


def _listed(asked: Sequence[Entry]) -> str:
    seconds = {cell["name"]: cell["seconds"] for cell in read_result(RESULTS)["cells"]}
    lines = [
        f"{entry.name}  {entry.expected or 'control'}  {entry.workload}  "
        f"{' '.join((*entry.environment, entry.setting)).strip() or '-'}  {entry.words}"
        for entry in asked
    ]
    num_faults = sum(bool(entry.expected) for entry in asked)
    together = sum(seconds.get(entry.name, 0.0) for entry in asked if not entry.is_throughput)
    alone = sum(seconds.get(entry.name, 0.0) for entry in asked if entry.is_throughput)
    lines.append(
        f"{num_faults} faults, {len(asked) - num_faults} controls; by their last results {together:.0f} s of one core, "
        f"and {alone:.0f} s alone: {(together / 2 + alone) / 60:.0f} minutes on two cores"
    )
    return "\n".join(lines) + "\n"


def _run(args: argparse.Namespace, asked: Sequence[Entry]) -> list[Cell]:
    """Judge the requested entries, and return the results that the totals are of."""
    book = Book(RESULTS)
    work = [(entry, SEED) for entry in asked if not (args.resume and book.is_judged(entry))]
    with tempfile.TemporaryDirectory(prefix="plumbline-faults-") as folder:
        if args.sample:
            return [cell_of(result) for result in run_all(Path(folder), work, seconds=args.seconds)]
        run_all(Path(folder), work, on_result=book.add, seconds=args.seconds)
    return list(read_result(RESULTS)["cells"])


def page_of_results() -> str:
    """Return the text of docs/FAULTS.md."""
    return page(read_result(RESULTS), read_result(ATTEMPTS), read_result(PAIRS))


def main() -> int:
    """Run the requested entries; return 0 if all required totals hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--family", action="append", default=[], choices=FILES, help="only this; may be repeated")
    parser.add_argument("--name", action="append", default=[], help="only this entry; may be repeated")
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="N faults and N / 4 controls, drawn at random"
    )
    parser.add_argument("--draw", type=int, default=1, help="the number that draws the sample")
    parser.add_argument("--list", action="store_true", help="only list the entries, and how long they took")
    parser.add_argument("--judge", action="store_true", help="only print the digest of this judge's code")
    parser.add_argument("--report", action="store_true", help="only write the page anew")
    parser.add_argument("--resume", action="store_true", help="leave out what this judge has judged already")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no entry after so many")
    args = parser.parse_args()
    if args.judge:
        sys.stdout.write(f"{judge_digest()}\n")
        return 0
    asked = _asked(args)
    if args.list:
        sys.stdout.write(_listed(asked))
        return 0
    cells = read_result(RESULTS)["cells"] if args.report else _run(args, asked)
    if not args.sample:
        PAGE.write_text(page_of_results(), encoding="utf-8")
    totals = totals_of(cells)
    sys.stdout.write("\n".join(totals.lines) + "\n")
    return 0 if totals.holds else 1


if __name__ == "__main__":
    sys.exit(main())
