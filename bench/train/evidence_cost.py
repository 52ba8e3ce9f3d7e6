"""`python -m bench.train.evidence_cost --out FILE`: cost of the speed part's trail, with and without it side by side.

Two engines train on equal batches in turns, A B B A; only one keeps the trail. The ratio of the medians of the blocks'
CPU times counts the work of this process, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from plumbline.schema.spec import DataSpec, ModelSpec, RunSpec
from plumbline.train.batches import Batch
from plumbline.train.engine import Engine, Observer
from plumbline.train.model import build_model
from plumbline.train.numerics import apply_settings
from plumbline.train.ranks import Ranks
from plumbline.train.trail import TrailObserver

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden": 128, "layers": 2, "heads": 2, "batch": 16, "length": 64},
    "mini": {"hidden": 256, "layers": 4, "heads": 4, "batch": 8, "length": 64},
}
BLOCK = 10


def _spec(size: dict[str, Any]) -> RunSpec:
    model = ModelSpec(
        hidden_size=size["hidden"], num_hidden_layers=size["layers"], num_attention_heads=size["heads"],
        intermediate_size=4 * size["hidden"], max_position_embeddings=size["length"], vocab_size=8192, num_labels=2,
        weights_key="w", weights_sha256="0" * 64,
    )  # fmt: skip
    data = DataSpec(name="d", manifest_sha256="0" * 64, sequence_length=size["length"])
    return RunSpec(
        workload="w", task="sequence-classification", model=model, data=data, seed=1, batch_size=size["batch"],
        speed={"steps": 10},
    )  # fmt: skip


def _batch(spec: RunSpec) -> Batch:
    shape = (spec.batch_size, spec.data.sequence_length)
    ids = torch.arange(shape[0] * shape[1]).reshape(shape) % spec.model.vocab_size
    return {
        "row_ids": torch.arange(shape[0]), "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids), "labels": torch.arange(shape[0]) % 2,
    }  # fmt: skip


def _engine(spec: RunSpec, observer: Observer, precision: str) -> Engine:
    torch.manual_seed(1)
    model = build_model(spec, attention="sdpa", dropout=0.1, device=torch.device("cpu")).train()
    return Engine(
        spec, model, Ranks(), steps=100_000, precision=precision, part="speed", fused=True, observer=observer,  # type: ignore[arg-type]
    )  # fmt: skip


def measure(size: str, precision: str, blocks: int) -> dict[str, Any]:
    """Return the CPU seconds of each block without and with the trail."""
    spec = _spec(SIZES[size])
    apply_settings(precision, strict=False, part="speed")  # type: ignore[arg-type]
    batch = _batch(spec)
    engines = [_engine(spec, Observer(), precision), _engine(spec, TrailObserver(Ranks(), spec.batch_size), precision)]
    seconds: list[list[float]] = [[], []]
    step = 0
    for block in range(-1, blocks):
        for which in (0, 1) if block % 2 else (1, 0):
            began = time.process_time()
            for _ in range(BLOCK):
                engines[which].step(step, batch)
            if block >= 0:
                seconds[which].append(time.process_time() - began)
        step += BLOCK
    without, kept = map(statistics.median, seconds)
    return {
        "size": size, "precision": precision, "ratio": kept / without, "ms_a_step": 1000 * without / BLOCK,
        "seconds_without": seconds[0], "seconds_with": seconds[1],
    }  # fmt: skip


def main() -> None:
    """Measure every size, and write the raw results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    arguments = parser.parse_args()
    results = []
    for size in arguments.sizes:
        result = measure(size, "fp32", arguments.blocks)
        results.append(result)
        print(
            f"{result['size']} {result['precision']}: {result['ms_a_step']:.1f} ms a step, {result['ratio']:.4f}",
            flush=True,
        )
    arguments.out.write_text(json.dumps({"threads": torch.get_num_threads(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
