"""Effect of each fault and benign change on the portable leg's bits.

    PYTHONPATH=. python bench/train/portable_faults.py --out bench/results/portable-faults.json [--part 0/4]

No judge takes part: a line says whether the bits are those of the undisturbed training, and where they first part.
`--part I/N` runs every N-th entry from I on, and adds to what the file holds. `--from FILE` trains nothing, and takes
what a run of the fault benchmark recorded (`bench/results/faults.json`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.faults.bench import Bench, _candidate, _setting
from bench.faults.catalogue import CONTROLS, FAULTS, Entry, _function
from bench.faults.held_out import SETS
from bench.faults.portable_bits import bits_of
from bench.faults.trainer import Side, Trainer
from bench.train.workload import machine
from plumbline.schema.spec import read_spec, write_spec

_ENTRIES = (
    *FAULTS, *(one for held in SETS for one in held.faults),
    *CONTROLS, *(one for held in SETS for one in held.controls),
)  # fmt: skip
_SEED = 3


def _lean(bench: Bench, entry: Entry) -> None:
    """Remove the unused envelope from the entry's spec."""
    path = bench.world.spec(entry.workload, _SEED)
    spec = read_spec(path)
    if spec.probe is not None and spec.probe.envelope_seeds:
        write_spec(spec.replace(probe=spec.probe.replace(envelope_seeds=0)), path)


def _row(bench: Bench, trainer: Trainer, entry: Entry) -> dict[str, Any]:
    _lean(bench, entry)
    reference = bench.reference(trainer, entry, _SEED)
    clean = Side(bench.world.spec(entry.workload, _SEED), bench.world.data, "left")
    data = clean.data
    if entry.alter:
        read = reference.rows["row_id"].tolist()
        data = bench.world.altered(entry.name, entry.workload, _function(entry.alter), read, _SEED)
    side = replace(clean, data=data, inject=entry.inject, environment=entry.environment)
    with _setting(entry, trainer):
        record = _candidate(entry, trainer, side, f"candidate-{entry.name}")
    row: dict[str, Any] = {"name": entry.name, "family": entry.family, "expected": entry.expected}
    return row | bits_of(reference, record).to_json()


def _write(out: Path, rows: dict[str, dict[str, Any]]) -> None:
    order = [entry.name for entry in _ENTRIES]
    listed = sorted(rows.values(), key=lambda row: order.index(row["name"]))
    document = {"machine": machine(), "seed": _SEED, "rows": listed}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _copy(source: Path, out: Path) -> None:
    """Write the recorded rows; the last seed of each entry counts."""
    rows = {}
    for result in json.loads(source.read_text())["results"]:
        if result.get("portable"):
            keys = ("name", "family", "expected", "seed")
            rows[result["name"]] = {key: result[key] for key in keys} | result["portable"]
    _write(out, {**(_rows(out) if out.is_file() else {}), **rows})


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(path.read_text())["rows"]}


def main() -> None:
    """Run the entries, and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--from", dest="source", type=Path, help="results of `python -m bench.faults`")
    parser.add_argument("--name", action="append", default=[])
    arguments = parser.parse_args()
    first, count = (int(value) for value in arguments.part.split("/"))
    if arguments.source:
        _copy(arguments.source, arguments.out)
        return
    rows = _rows(arguments.out) if arguments.out.is_file() else {}
    with tempfile.TemporaryDirectory(prefix="plumbline-portable-") as folder:
        bench = Bench(Path(folder))
        with Trainer(arguments.core, Path(folder) / "work") as trainer:
            for entry in [
                item
                for item in _ENTRIES
                if item.name not in rows and (not arguments.name or item.name in arguments.name)
            ][first::count]:
                rows[entry.name] = row = _row(bench, trainer, entry)
                sys.stderr.write(json.dumps(row) + "\n")
                _write(arguments.out, rows)


if __name__ == "__main__":
    main()
