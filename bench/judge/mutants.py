"""`make mutants`: change the judge's code in small ways, and count the changes that its tests notice.

Mutants are cosmic-ray's, of `plumbline/judge`, `plumbline/sketch.py` and `plumbline/digest.py`, constants included.
Each is tried in a copy of the tree. `--sample N` tries a random N of them, drawn by `--seed`. Annotations, decorators
and their arguments are left out: no test can tell such mutants apart. Result: `bench/results/mutants.json`, with the
change of every survivor.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "mutants.json"
MODULES = ("plumbline/judge", "plumbline/sketch.py", "plumbline/digest.py")
TESTS = ("tests/unit/judge", "tests/unit/test_sketch.py", "tests/unit/schema/test_digest.py")
_TIMEOUT_SECONDS = 120
Span = tuple[tuple[int, int], tuple[int, int]]


def _config(folder: Path, modules: list[str]) -> Path:
    command = f"{sys.executable} -m pytest -x -q --no-header -p no:cacheprovider {' '.join(TESTS)}"
    lines = [
        "[cosmic-ray]",
        f"module-path = {json.dumps(modules)}",
        f"timeout = {_TIMEOUT_SECONDS}.0",
        "excluded-modules = []",
        f"test-command = {json.dumps(command)}",
        "[cosmic-ray.distributor]",
        'name = "local"',
    ]
    path = folder / "mutants.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def copy_tree(folder: Path) -> None:
    """Copy what git tracks, as it is in the working tree."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def _untestable(path: Path) -> Iterator[Span]:
    """Return (line, column) spans of annotations and decorators."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        parts = [getattr(node, name, None) for name in ("annotation", "returns")]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.BinOp)):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            parts += [node.value] if names and names[0].strip("_")[:1].isupper() and not names[0].isupper() else []
        for part in parts:
            if isinstance(part, ast.expr):
                yield (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)


def _pick(session: Path, folder: Path, sample: int, seed: int, shard: tuple[int, int]) -> tuple[int, int]:
    """Skip all mutants outside this shard's sample; return both counts."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(session) as database:
        items = sorted(database.pending_work_items, key=lambda item: str(item.mutations))
        spans = {path: list(_untestable(folder / path)) for path in {str(i.mutations[0].module_path) for i in items}}
        real = [
            item
            for item in items
            if not any(a <= item.mutations[0].start_pos < b for a, b in spans[str(item.mutations[0].module_path)])
        ]
        drawn = random.Random(seed).sample(real, min(sample or len(real), len(real)))
        mine = {item.job_id for place, item in enumerate(drawn) if place % shard[1] == shard[0]}
        for item in items:
            if item.job_id not in mine:
                database.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(real), len(drawn)


def _outcome(result: Any) -> str:
    return str(result.test_outcome.value if result.test_outcome else result.worker_outcome.value)


def _results(session: Path) -> Iterator[dict[str, Any]]:
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome

    with use_db(session) as database:
        for item, result in database.completed_work_items:
            if result.worker_outcome == WorkerOutcome.SKIPPED:
                continue
            mutation = item.mutations[0]
            yield {
                "file": str(mutation.module_path), "line": mutation.start_pos[0], "operator": mutation.operator_name,
                "occurrence": mutation.occurrence, "outcome": _outcome(result),
                "diff": result.diff if _outcome(result) == "survived" else "",
            }  # fmt: skip


def _shard(modules: list[str], sample: int, seed: int, shard: tuple[int, int], seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="plumbline-mutants-") as name:
        folder, session = Path(name), Path(name) / "session.sqlite"
        copy_tree(folder)
        config = _config(folder, modules)
        given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in given)}
        run = [sys.executable, "-m", "cosmic_ray.cli"]
        task = partial(subprocess.run, cwd=folder, check=True, env=environment)
        task([*run, "init", str(config), str(session)])
        count, drawn = _pick(session, folder, sample, seed, shard)
        try:
            task([*run, "exec", str(config), str(session)], timeout=seconds)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"shard {shard[0]}: out of time; what is done counts\n")
        return {"mutants": count, "drawn": drawn, "results": list(_results(session))}


def main() -> int:
    """Run, write the result, and fail below 90%."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="how many mutants are tried; 0: all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", action="append", help="a file or folder; may be repeated")
    parser.add_argument("--shards", type=int, default=2, help="how many copies work at once")
    parser.add_argument("--seconds", type=float, default=36000.0, help="when to stop")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    modules, began = args.module or list(MODULES), time.monotonic()
    with ThreadPoolExecutor(args.shards) as pool:
        parts = [(place, args.shards) for place in range(args.shards)]
        parts = list(pool.map(lambda part: _shard(modules, args.sample, args.seed, part, args.seconds), parts))
    results = sorted((one for part in parts for one in part["results"]), key=lambda one: (one["file"], one["line"]))
    killed = sum(result["outcome"] != "survived" for result in results)
    document = {
        "command": " ".join(["python", "bench/judge/mutants.py", *sys.argv[1:]]), "modules": modules,
        "mutants": parts[0]["mutants"], "drawn": parts[0]["drawn"], "tried": len(results), "killed": killed,
        "share": killed / len(results) if results else None, "seconds": round(time.monotonic() - began),
        "survivors": [result for result in results if result["outcome"] == "survived"], "results": results,
    }  # fmt: skip
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{killed} of {len(results)} tried are killed ({document['mutants']} in all)")
    return 0 if results and killed >= 0.9 * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
