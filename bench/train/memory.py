"""Host memory of a probe's taps, by number of layers.

    PYTHONPATH=. python bench/train/memory.py --out bench/results/train-memory.json

A probe and its portable leg, each with and without taps of their first step, at 2 to 24 layers of width 128. Each is a
process of its own, and the kernel states its largest resident size. The difference with and without taps is the memory
of the taps. It should be that of one layer, whatever the number of layers. The variants take turns.

The C library's allocator gives each block of 64 KiB or more back as soon as it is freed. By default it keeps them, and
what a tap frees between two layers' kept activations stays a hole: 16 MiB at 2 layers, 113 MiB at 24 in the leg, which
looked like tensors that wait.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.train.workload import Workload, machine
from plumbline.launch import trainer_environment
from plumbline.train.engine import Engine
from plumbline.train.model import build_model, load_weights
from plumbline.train.numerics import apply_settings
from plumbline.train.portable.leg import PortableLeg
from plumbline.train.probe import ProbeObserver
from plumbline.train.taps import TapBook

VARIANTS = ("probe", "probe without taps", "leg", "leg without taps")
STEPS = 2


def train(variant: str, layers: int, batch_size: int, length: int) -> None:
    """Train the steps of one variant in this process."""
    is_tapped = not variant.endswith("without taps")
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload(Path(folder), "tiny", length, layers=layers)
        # The leg has one step, with the requested taps. Of one slice are the products of any step, with taps or not.
        probe = {"steps": STEPS, "portable_steps": 1, "portable_slices": 1, "tap_steps": [0 if is_tapped else 1]}
        with workload.context(workload.spec(batch_size, probe=probe)) as context:
            if variant.startswith("leg"):
                PortableLeg(context, context.spec.probe).run(repeat=False)
                return
            apply_settings("fp32", strict=True, part="probe")
            model = build_model(context.spec, attention="eager", dropout=0.0, device=context.ranks.device)
            load_weights(model, context.weights)
            engine = Engine(context.spec, model.train(), context.ranks, steps=STEPS, precision="fp32", part="probe")
            engine.observer = ProbeObserver(context, engine, TapBook(), [0] if is_tapped else [])
            for step, batch in enumerate(context.batches(first=0, count=STEPS)):
                engine.step(step, batch)


def _peak(*arguments: str) -> int:
    """Return the largest resident size of a child of this program, in bytes."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", *arguments], stderr=subprocess.PIPE,
        env=trainer_environment({"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}),
    )  # fmt: skip
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(child.stderr.read().decode() if child.stderr else "")
    return used.ru_maxrss * 1024


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=4, metavar=("VARIANT", "LAYERS", "BATCH", "LENGTH"), help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 24])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        variant, *sizes = arguments.child
        train(variant, *map(int, sizes))
        return
    found: dict[str, dict[str, int]] = {name: {} for name in VARIANTS}
    for layers in arguments.layers:
        for name in VARIANTS:
            found[name][str(layers)] = _peak(name, str(layers), str(arguments.batch_size), str(arguments.length))
        taps = {
            name: found[name][str(layers)] - found[f"{name} without taps"][str(layers)] for name in ("probe", "leg")
        }
        print(layers, "layers:", {name: f"{held / 2**20:.0f} MiB" for name, held in taps.items()}, flush=True)
    elements = arguments.batch_size * arguments.length * 128
    result: dict[str, Any] = {
        "machine": machine(), "batch_size": arguments.batch_size, "length": arguments.length,
        "output_bytes": {"probe": 4 * elements, "leg": 8 * elements}, "peak_bytes": found,
    }  # fmt: skip
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
