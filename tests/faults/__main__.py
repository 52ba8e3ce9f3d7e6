"""`python -m tests.faults [--family NAME ...] [--seeds 1,2,3]`: run the catalogue, and write its table.

Results are kept in `bench/results/faults.json`, entry by entry, so that a run of some families renews theirs alone;
those of a held-out set (`--held-out 1`) in `bench/results/faults-held-out.json`, where what first came out is never
replaced. `docs/FAULTS.md` is written from all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.faults.bench import Result, run_all, two_cores
from tests.faults.catalogue import CONTROLS, FAULTS, Entry
from tests.faults.held_out import SETS
from tests.faults.report import write_report
from tests.faults.speed import SPEED, run_speed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "faults.json"
HELD_OUT_RESULTS = {
    held.number: RESULTS.with_name(f"faults-held-out{'' if held.number == 1 else f'-{held.number}'}.json")
    for held in SETS
}
TABLE = ROOT / "docs" / "FAULTS.md"
_SEEN = [held for held in SETS if held.seen]
CATALOGUE = (
    *FAULTS, *(one for held in _SEEN for one in held.faults),
    *CONTROLS, *(one for held in _SEEN for one in held.controls),
)  # fmt: skip


def _machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    isa = torch.backends.cpu.get_cpu_capability()
    return f"{os.cpu_count()} cores {model}, {isa}, {memory:.0f} GiB, Python {platform.python_version()}, torch {torch.__version__} CPU"  # noqa: E501


def _known(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {"results": [], "seconds": 0.0}
    return found


def _merged(results: list[Result], seconds: float, *, held_out: int = 0) -> dict[str, Any]:
    """Known results with the fresh ones; of a held-out set with those alone that are not known yet."""
    entries = SETS[held_out - 1].entries if held_out else (*CATALOGUE, *SPEED)
    known = _known(HELD_OUT_RESULTS[held_out] if held_out else RESULTS)
    fresh = {(one.name, one.seed): asdict(one) for one in results}
    if held_out:
        fresh = {key: fresh[key] for key in fresh.keys() - {(one["name"], one["seed"]) for one in known["results"]}}
    order = {one.name: place for place, one in enumerate(entries)}
    kept = [one for one in known["results"] if (one["name"], one["seed"]) not in fresh and one["name"] in order]
    note = {"note": known["note"]} if kept and "note" in known else {}
    return {
        **note,
        "command": f"python -m tests.faults --held-out {held_out}" if held_out else "make faults",
        "machine": _machine() if results else known["machine"],
        "seconds": known["seconds"] * len(kept) / max(len(known["results"]), 1) + (seconds if fresh else 0.0),
        "results": sorted([*kept, *fresh.values()], key=lambda one: (order[one["name"]], one["seed"])),
    }


def _asked(one: Entry, args: argparse.Namespace) -> bool:
    everything = not args.family and not args.name
    return everything or one.family in args.family or one.name in args.name


def main() -> int:
    """Run what was asked for; 0 if what must hold holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--family", action="append", default=[], help="only this one; may stand repeatedly")
    parser.add_argument("--name", action="append", default=[], help="only this entry; may stand repeatedly")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--cores", default=",".join(map(str, two_cores())))
    parser.add_argument(
        "--held-out", type=int, default=0, choices=list(HELD_OUT_RESULTS), help="a held-out set, not the catalogue"
    )
    parser.add_argument("--report", action="store_true", help="only write the table anew")
    args = parser.parse_args()
    seeds, cores = ([int(one) for one in text.split(",")] for text in (args.seeds, args.cores))
    started = time.perf_counter()
    results: list[Result] = []
    if not args.report:
        entries = SETS[args.held_out - 1].entries if args.held_out else CATALOGUE
        chosen = [one for one in entries if _asked(one, args)]
        with tempfile.TemporaryDirectory(prefix="plumbline-faults-") as folder:
            if chosen:
                results += run_all(Path(folder), [(one, seed) for seed in seeds for one in chosen], tuple(cores))
            if not args.held_out and any(_asked(one, args) for one in SPEED):
                results += run_speed(Path(folder), seeds, cores[0])
    path = HELD_OUT_RESULTS[args.held_out] if args.held_out else RESULTS
    document = _merged(results, time.perf_counter() - started, held_out=args.held_out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    held_out = [(held, _known(HELD_OUT_RESULTS[held.number])) for held in SETS]
    totals = write_report(_known(RESULTS), held_out, TABLE)
    sys.stdout.write("\n".join(totals.lines) + "\n")
    return 0 if totals.holds else 1


if __name__ == "__main__":
    sys.exit(main())
