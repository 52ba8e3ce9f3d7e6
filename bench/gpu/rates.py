"""Checks of a GPU's rates: throughput beside the peers, the share of its ceiling, and the probe's time."""

from __future__ import annotations

import json
import time
from typing import Any

from bench.gpu.place import Found, Place, ask
from bench.train.workload import Workload
from plumbline.schema.errors import InconclusiveError
from plumbline.schema.step_log import StepLog

HOPPER_BF16 = 989.4e12
"""Dense bf16 products of an H100 SXM or H200, FLOP/s (NVIDIA's datasheets)."""

CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("sequence-classification", {}),
    "recomputed": ("sequence-classification", {"gradient_checkpointing": True}),
    "compiled": ("sequence-classification", {"compile": True}),
    "graphs": ("sequence-classification", {"compile": True, "compile_mode": "reduce-overhead"}),
    "padded": ("masked-lm", {}),
    "packed": ("masked-lm", {"padding": "packed"}),
    "gpt2": ("causal-lm", {}),
}
"""Task and settings of `speed` by name."""
COMPARED = (
    ("recomputed", "plain", "peak_memory_bytes"), ("graphs", "plain", "step_seconds"),
    ("padded", "packed", "real_tokens_per_second"),
)  # fmt: skip


def throughput(place: Place, size: str, batch: int, length: int) -> Found:
    """Alternate our loop, the Trainer's and a bare loop; see `bench/train/throughput.py`."""
    small = bool(place.size)
    out = place.folder / f"{size}.json"
    given = {
        "--size": place.size or size, "--precision": "bf16", "--batch-size": 4 if small else batch,
        "--length": 32 if small else length, "--rounds": 3 if small else 30, "--settings": "bf16", "--out": out,
    }  # fmt: skip
    done = place.run("bench.train.throughput", *(word for pair in given.items() for word in pair))
    if done.returncode:
        raise InconclusiveError((done.stderr.strip().splitlines() or ["no reason given"])[-1], where=f"{size} {batch}")
    written = json.loads(out.read_bytes())
    result = {"machine": written["machine"], "workload": written["workload"], **written["settings"]["bf16"]}
    ratio = {name: clocks["wall"]["median"] for name, clocks in result["ratios"].items()}
    asked = {
        "ahead_of_the_trainer": ("ours/trainer", 1.0),
        "within_2_percent_of_the_bare_loop": ("ours/bare", 1.02),
        "strict_at_most_1_10": ("strict/default", 1.10),
    }
    answers = {name: ratio[key] <= most for name, (key, most) in asked.items() if key in ratio}
    missing = {"could_not_be_run": result["left_out"][0]} if result["left_out"] else {}
    return {**ask(place, **answers), **missing, **result}


def choices(place: Place, size: str, batch: int, length: int, *names: str) -> Found:
    """Train `speed` by each choice, and compare it with the rate of matrix products measured beside it."""
    small, rows = bool(place.size), dict[str, Found]()
    for name in names:
        task, choice = CHOICES[name]
        workload = Workload(place.folder / f"{size}-{name}", place.size or size, 32 if small else length, task=task)
        compiler = {} if place.device == "cuda" else {"compile": False, "compile_mode": "default"}
        speed = {"steps": 10 if small else 40, "precision": "bf16", **choice, **compiler}
        try:
            record = place.train(workload, workload.spec(4 if small else batch, speed=speed), f"{size}-{name}").record
        except InconclusiveError as error:
            rows[name] = {"failed": str(error)}
            continue
        found = record.evidence.speed
        if found is None or found.mfu is None:
            rows[name] = {"failed": "no MFU was measured"}
            continue
        before, after = (found.microbenchmarks[name] for name in ("gemm_flops", "gemm_flops_after"))
        flops = found.mfu * before
        untimed = ("samples", "portable", "production", *StepLog.model_fields)
        timed = {key: value for key, value in found.to_json().items() if key not in untimed}
        readings = {key: values for key, values in found.samples.items() if key.startswith("gpu_")}
        shares = {"mfu": flops / ((before + after) / 2), "mfu_of_datasheet": flops / HOPPER_BF16}
        rows[name] = {**shares, "speed": timed, "readings": readings}
    known = {name: row["speed"] for name, row in rows.items() if "speed" in row}
    asked = {"each_choice_trains": len(known) == len(rows)}
    for less, more, key in COMPARED:
        if less in known and more in known:
            asked[f"{less}: less {key} than {more}"] = (known[less][key] or 0) < (known[more][key] or 0)
    if size == "large":
        asked["at_least_half"] = max((row.get("mfu", 0.0) for row in rows.values()), default=0.0) >= 0.5
    return {**ask(place, **asked), "choices": rows}


def probe(place: Place, size: str, length: int, most: float) -> Found:
    """Time a whole probe, and ask for its memory."""
    small = bool(place.size)
    workload = Workload(place.folder / f"probe-{size}", place.size or size, 32 if small else length)
    spec = workload.spec(4 if small else 32, probe={"steps": 3 if small else 20})
    began = time.perf_counter()
    record = place.train(workload, spec, f"probe-{size}").record
    seconds = time.perf_counter() - began
    lost = record.evidence.probe.portable.lost if record.evidence.probe else "the probe"
    return {
        **ask(place, in_time=seconds <= most, nothing_lost=not lost), "seconds": seconds, "timings": record.timings,
        "lost": lost,
    }  # fmt: skip
