"""`python -m bench.faults [--family NAME ...] [--seeds 1,2,3]`: run the catalogue, and write its table.

Results are kept in `bench/results/faults.json`, entry by entry, so that a run of some families renews theirs alone;
those of a held-out set (`--held-out 1`) in `bench/results/faults-held-out.json`, where what first came out is never
replaced. `docs/FAULTS.md` and `bench/results/faults.md` are written from all of them; `--report` only writes these.

Each result is written as soon as it is known. `--resume` leaves out what the present judge has judged already, and
`--seconds N` begins no entry after N seconds: so a run can be cut into slices, or ended at any time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.faults.bench import Result, run_all, two_cores
from bench.faults.benign_pairs import RESULT as PAIRS_RESULT
from bench.faults.catalogue import CONTROLS, FAULTS, Entry
from bench.faults.doors import ROWS as DOORS
from bench.faults.held_out import SETS
from bench.faults.machine import commit, judge_digest, machine
from bench.faults.production_report import production_section
from bench.faults.report import entries_page, headline_page, totals_of
from bench.faults.speed import SPEED, run_speed
from bench.faults.wrong_passes import RESULT as ATTEMPTS_RESULT

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "faults.json"
HELD_OUT_RESULTS = {
    held.number: RESULTS.with_name(f"faults-held-out{'' if held.number == 1 else f'-{held.number}'}.json")
    for held in SETS
}
_SEEN = [held for held in SETS if held.seen]
CATALOGUE = (
    *FAULTS, *DOORS, *(one for held in _SEEN for one in held.faults),
    *CONTROLS, *(one for held in _SEEN for one in held.controls),
)  # fmt: skip


def _known(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {"results": [], "seconds": 0.0}
    return result


def _merged(
    results: list[Result], seconds: float, *, held_out: int = 0, known: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Merge known and fresh results; keep known results of held-out sets."""
    entries = SETS[held_out - 1].entries if held_out else (*CATALOGUE, *SPEED)
    known = known or _known(HELD_OUT_RESULTS[held_out] if held_out else RESULTS)
    fresh = {(result.name, result.seed): asdict(result) for result in results}
    if held_out:
        fresh = {key: fresh[key] for key in fresh.keys() - {(one["name"], one["seed"]) for one in known["results"]}}
    order = {one.name: place for place, one in enumerate(entries)}
    kept = [one for one in known["results"] if (one["name"], one["seed"]) not in fresh and one["name"] in order]
    note = {"note": known["note"]} if kept and "note" in known else {}
    return {
        **note,
        "command": f"python -m bench.faults --held-out {held_out}" if held_out else "make faults",
        "machine": machine() if results else known["machine"],
        "commit": commit() if results else known.get("commit", ""),
        "seconds": known["seconds"] * len(kept) / max(len(known["results"]), 1) + (seconds if fresh else 0.0),
        "results": sorted([*kept, *fresh.values()], key=lambda one: (order[one["name"]], one["seed"])),
    }


class Book:
    """The result file, written anew after each result."""

    def __init__(self, path: Path, held_out: int) -> None:
        self.path, self._held_out, self._judge = path, held_out, judge_digest()
        self._lock, self._began, self._results = threading.Lock(), time.perf_counter(), list[Result]()
        self._before = _known(path)

    def add(self, result: Result) -> None:
        """Keep one result, also on disk."""
        with self._lock:
            result.judge = self._judge
            self._results.append(result)
            self.write()

    def write(self) -> None:
        """Write known and new results atomically."""
        seconds = time.perf_counter() - self._began
        document = _merged(self._results, seconds, held_out=self._held_out, known=self._before)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.part")
        draft.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(self.path)

    def is_judged(self, entry: Entry, seed: int) -> bool:
        """Return whether the present judge has judged this before."""
        key = (entry.name, seed, self._judge)
        return any((item["name"], item["seed"], item.get("judge")) == key for item in self._before["results"])


def _asked(entry: Entry, args: argparse.Namespace) -> bool:
    everything = not args.family and not args.name
    return everything or entry.family in args.family or entry.name in args.name


def _is_due(entry: Entry, seed: int, args: argparse.Namespace, book: Book) -> bool:
    return _asked(entry, args) and not (args.resume and book.is_judged(entry, seed))


def _run(args: argparse.Namespace) -> None:
    """Run the requested entries, and keep each result."""
    seeds, cores = ([int(item) for item in text.split(",")] for text in (args.seeds, args.cores))
    began = time.monotonic()
    entries = SETS[args.held_out - 1].entries if args.held_out else CATALOGUE
    book = Book(HELD_OUT_RESULTS[args.held_out] if args.held_out else RESULTS, args.held_out)
    work = [(entry, seed) for seed in seeds for entry in entries if _is_due(entry, seed, args, book)]
    with tempfile.TemporaryDirectory(prefix="plumbline-faults-") as folder:
        if work:
            run_all(Path(folder), work, tuple(cores), on_result=book.add, seconds=args.seconds)
        timed = [] if args.held_out else [(item, seed) for seed in seeds for item in SPEED]
        if timed := [(item, seed) for item, seed in timed if _is_due(item, seed, args, book)]:
            left = args.seconds - (time.monotonic() - began)
            run_speed(Path(folder), timed, cores[0], on_result=book.add, seconds=left)


def pages() -> dict[Path, str]:
    """Return the text of each page that is written from the results."""
    held_out = [(held, _known(HELD_OUT_RESULTS[held.number])) for held in SETS]
    production = (json.loads(path.read_bytes()) for path in (ATTEMPTS_RESULT, PAIRS_RESULT))
    return {
        ROOT / "docs" / "FAULTS.md": headline_page(_known(RESULTS), held_out, production_section(*production)),
        RESULTS.with_suffix(".md"): entries_page(_known(RESULTS), held_out),
    }


def main() -> int:
    """Run the requested entries; return 0 if all required totals hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--family", action="append", default=[], help="only this family; may be repeated")
    parser.add_argument("--name", action="append", default=[], help="only this entry; may be repeated")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--cores", default=",".join(map(str, two_cores())))
    parser.add_argument(
        "--held-out", type=int, default=0, choices=list(HELD_OUT_RESULTS), help="a held-out set, not the catalogue"
    )
    parser.add_argument("--report", action="store_true", help="only write the pages anew")
    parser.add_argument("--resume", action="store_true", help="leave out what this judge has judged already")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no entry after so many")
    args = parser.parse_args()
    if not args.report:
        _run(args)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    totals = totals_of(_known(RESULTS)["results"])
    sys.stdout.write("\n".join(totals.lines) + "\n")
    return 0 if totals.holds else 1


if __name__ == "__main__":
    sys.exit(main())
