"""Checks of a GPU's rates: throughput beside the peers, the share of its ceiling, and the probe's time."""

from __future__ import annotations

import json
import time

from bench.gpu.place import Found, Place, ask
from bench.train.workload import Workload
from plumbline.schema.errors import InconclusiveError

HOPPER_BF16 = 989.4e12
"""Dense bf16 products of an H100 SXM or H200, FLOP/s (NVIDIA's datasheets)."""


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


def mfu(place: Place, size: str, *, compiled: bool) -> Found:
    """Train `speed` at sequence 512, and compare it with the rate of matrix products measured beside it."""
    small = bool(place.size)
    workload = Workload(place.folder / f"mfu-{size}-{compiled}", place.size or size, 32 if small else 512)
    steps = {"steps": 10 if small else 60, "precision": "bf16", "compile": compiled and place.device == "cuda"}
    spec = workload.spec(4 if small else 32, speed=steps)
    record = place.train(workload, spec, f"mfu-{size}" + ("-compiled" if compiled else "")).record
    speed = record.evidence.speed
    if speed is None or speed.mfu is None:
        raise InconclusiveError("no MFU was measured", where=f"mfu-{size}")
    before, after = (speed.microbenchmarks[name] for name in ("gemm_flops", "gemm_flops_after"))
    flops = speed.mfu * before
    shares = {"mfu": flops / ((before + after) / 2), "mfu_of_datasheet": flops / HOPPER_BF16}
    readings = {name: values for name, values in speed.samples.items() if name.startswith("gpu_")}
    untimed = ("samples", "trail", "legs", "production")
    timed = {name: value for name, value in speed.to_json().items() if name not in untimed}
    return {**ask(place, at_least_half=shares["mfu"] >= 0.5), **shares, "speed": timed, "readings": readings}


def probe(place: Place, size: str, length: int, most: float) -> Found:
    """Time a whole probe, and ask for its memory."""
    small = bool(place.size)
    workload = Workload(place.folder / f"probe-{size}", place.size or size, 32 if small else length)
    spec = workload.spec(4 if small else 32, probe={"steps": 3 if small else 20})
    began = time.perf_counter()
    record = place.train(workload, spec, f"probe-{size}").record
    seconds = time.perf_counter() - began
    lost = record.evidence.probe.to_json().get("lost_legs") if record.evidence.probe else "the probe"
    return {
        **ask(place, in_time=seconds <= most, nothing_lost=not lost), "seconds": seconds, "timings": record.timings,
        "lost": lost,
    }  # fmt: skip
