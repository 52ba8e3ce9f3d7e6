"""What the portable leg costs against the fp64 run before it: processor seconds of a whole probe of BERT-tiny.

    PYTHONPATH=. python bench/train/portable_cost.py --before TREE --out bench/results/portable-cost.json

`TREE` is a checkout of the last commit with the fp64 run, 9e249d5. Each training runs in a new process. The
benchmark measures its user and system seconds, which depend little on other load. The two trees alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.train.workload import machine

_SPEC = """
import sys
from pathlib import Path
from bench.train.workload import Workload
from plumbline.schema.spec import write_spec
folder, batch, length, probe = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4])
workload = Workload(folder, "tiny", length)
for name, parts in probe.items():
    write_spec(workload.spec(batch, probe=parts), folder / f"{name}.json")
"""
_BEFORE = "fp64"


def _run(tree: Path, *command: str) -> float:
    """Run Python in a tree; returns the processor seconds that it took."""
    environment = os.environ | {
        "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], cwd=tree, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _train(tree: Path, folder: Path, name: str) -> float:
    out = folder / f"record-{name}"
    arguments = [str(folder / f"{name}.json"), str(out), "--data", f"file://{folder}/store"]
    return _run(tree, "-m", "plumbline.train", *arguments, "--cache", str(folder / "cache"))


def main() -> None:
    """Measure, print and write; after each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout with the fp64 run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", default="2,4,8,10,12", help="values of portable_steps")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parents[2]
    portable = {
        f"portable-{steps}": {"steps": 20, "portable_steps": int(steps)} for steps in arguments.steps.split(",")
    }
    variants = {
        _BEFORE: (arguments.before.resolve(), {_BEFORE: {"steps": 20}}),
        **{n: (here, {n: p}) for n, p in portable.items()},
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory(prefix="plumbline-cost-") as name:
        folders = {
            tree: Path(name) / str(place) for place, tree in enumerate(dict.fromkeys(t for t, _ in variants.values()))
        }
        for tree, folder in folders.items():
            folder.mkdir()
            specs = {n: p for t, parts in variants.values() if t == tree for n, p in parts.items()}
            _run(tree, "-c", _SPEC, str(folder), str(arguments.batch), str(arguments.length), repr(specs))
        for variant, (tree, _) in variants.items():
            _train(tree, folders[tree], variant)  # the first training compiles Python and stages data
        for _ in range(arguments.rounds):
            for variant, (tree, _) in variants.items():
                seconds[variant].append(_train(tree, folders[tree], variant))
            medians = {variant: statistics.median(values) for variant, values in seconds.items()}
            document = {
                "command": " ".join(["python", "bench/train/portable_cost.py", *sys.argv[1:]]), "machine": machine(),
                "before": "9e249d5", "batch": arguments.batch, "length": arguments.length, "cpu_seconds": seconds,
                "medians": medians, "ratios": {variant: value / medians[_BEFORE] for variant, value in medians.items()},
            }  # fmt: skip
            arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print({variant: round(ratio, 3) for variant, ratio in document["ratios"].items()}, flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
