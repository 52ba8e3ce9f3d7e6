"""Checks that a GPU computes what a CPU computes: masks, windows, records, settings of `speed`, a resume."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.gpu.place import ROOT, Found, Place, judged, keep
from bench.train.workload import Workload
from plumbline.records import LoadedRecord
from plumbline.schema.errors import InconclusiveError
from plumbline.schema.portable_parts import parts as parts_of_windows
from plumbline.schema.spec import write_spec
from plumbline.train.models.dropout import keep_mask

_SETTINGS: Mapping[str, dict[str, str]] = {
    "plain": {},
    "TF32 for every product": {"NVIDIA_TF32_OVERRIDE": "1"},
    "TF32 by torch": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"},
    "a small workspace of cuBLAS": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
    "cuBLASLt": {"TORCH_BLAS_PREFER_CUBLASLT": "1"},
    "fp64 emulated": {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1", "CUBLAS_EMULATION_STRATEGY": "eager"},
    "one kernel at a time": {"CUDA_LAUNCH_BLOCKING": "1"},
    "no cache of memory": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
"""Settings of a GPU that change kernels and not the training."""
_CHOICES: tuple[dict[str, Any], ...] = (
    {"precision": "bf16"},
    {"precision": "bf16", "attention": "eager"},
    {"precision": "bf16", "fused_optimizer": False},
    {"precision": "bf16", "compile": True},
    {"precision": "bf16", "optimizer": "sgd"},
    {"precision": "bf16", "optimizer": "adafactor", "fused_optimizer": False},
    {"precision": "bf16", "gradient_checkpointing": True, "padding": "longest"},
    {"precision": "fp16"},
    {"precision": "tf32"},
    {"precision": "fp32"},
)
_PROBE = {"steps": 6, "portable_steps": 2, "evaluation_rows": 16}


def dropout(place: Place) -> Found:
    """Draw the same masks on both devices."""
    counts = {}
    for rate in (0.1, 0.5):
        for step in range(3):
            at = {"seed": 7, "step": step, "layer": 2, "first_row": 16}
            shape = (4, 2, 32, 32) if place.size else (32, 12, 128, 128)
            host, there = (keep_mask(shape, rate, device=torch.device(d), **at).cpu() for d in ("cpu", place.device))
            counts[f"rate {rate}, step {step}"] = int((host != there).sum())
    equal = not any(counts.values())
    return {"asked": {"the_same_bits": equal}, "holds": equal, "elements_that_differ": counts}


def _selfcheck(place: Place, attention: str, variables: Mapping[str, str]) -> Found:
    done = place.run("plumbline.train.selfcheck", "--device", place.device, "--attention", attention, **variables)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        return {"verdict": "no answer", "why": done.stderr.strip()[-600:]}
    return {key: value for key, value in document.items() if key != "steps"}


def golden(place: Place) -> Found:
    """Compare the shipped training's numbers with those shipped, under settings that change kernels."""
    asked = [(name, "eager", variables) for name, variables in _SETTINGS.items()] + [("SDPA", "sdpa", {})]
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda item: _selfcheck(place, item[1], item[2]), asked))
    results = {name: row for (name, *_), row in zip(asked, rows, strict=True)}
    # A library that emulates fp64 may be refused; what it may never do is pass with other numbers.
    equal = all(row["verdict"] == "pass" for name, row in results.items() if name != "fp64 emulated")
    return {"asked": {"the_shipped_numbers": equal}, "holds": equal, "settings": results}


def records(place: Place) -> Found:
    """Train one spec on the CPU, on the device, and on the device with TF32."""
    workload = Workload(place.folder / "records", place.size or "tiny", 32)
    spec = workload.spec(8, probe={"steps": 3 if place.size else 20})
    fault = "odd.tf32_switched_on" if place.device == "cuda" else "odd.tf32"
    outside = {"PLUMBLINE_FAULT": fault, "first_on_path": str(ROOT / "bench" / "faults" / "site")}
    cpu = place.train(workload, spec, "cpu", CUDA_VISIBLE_DEVICES="")
    device = place.train(workload, spec, place.other)
    tf32 = place.train(workload, spec, "tf32", **outside)
    keep(place.out / "records", cpu, device, tf32)
    plain, rounded = judged(cpu, device), judged(cpu, tf32)
    named = rounded["verdict"] == "drift" and rounded["causes"] == ["precision"]
    # Of another kernel the CPU itself makes nothing: there its two records are the same bits, and TF32 is emulated.
    holds = plain["verdict"] == "pass" and named
    return {
        "asked": {"the_device_passes": plain["verdict"] == "pass", "tf32_is_drift_by_precision": named},
        "holds": holds,
        "device": plain,
        "tf32": rounded,
    }


def _has_equal_windows(left: LoadedRecord, right: LoadedRecord) -> bool:
    windows = [record.record.evidence.probe.portable for record in (left, right)]
    return None not in windows and next(parts_of_windows(*windows), None) is None


def parts(place: Place) -> Found:
    """Train all parts on both devices, `speed` in bf16; the windows are equal."""
    workload = Workload(place.folder / "parts", place.size or "tiny", 32 if place.size else 64)
    steps = 12 if place.size else 60
    learn = {"steps": steps, "evaluate_every": steps // 2, "checkpoint_every": steps, "evaluation_rows": 64}
    spec = workload.spec(8 if place.size else 32, probe=_PROBE, speed={"steps": 10, "precision": "bf16"}, learn=learn)
    cpu = place.train(workload, spec, "parts-cpu", CUDA_VISIBLE_DEVICES="")
    device = place.train(workload, spec, f"parts-{place.other}")
    again = place.train(workload, spec, f"parts-{place.other}-again")
    keep(place.out / "records", cpu, device, again)
    equal, verdicts = _has_equal_windows(cpu, device), (judged(cpu, device), judged(device, again))
    asked = {
        "windows_are_equal": equal,
        "the_device_passes": verdicts[0]["verdict"] == "pass",
        "the_device_repeats_itself": verdicts[1]["verdict"] == "pass",
    }
    evidence = {record.folder.name: record.record.timings for record in (cpu, device, again)}
    return {
        "asked": asked, "holds": all(asked.values()), "device": verdicts[0], "again": verdicts[1], "timings": evidence
    }  # fmt: skip


def _worst(record: LoadedRecord) -> Found:
    speed = record.record.evidence.speed
    checks, windows = speed.production, speed.portable
    errors = [(math.inf if error is None else error, name) for name, error in checks.formula]
    return {
        "farthest_from_the_plain_model": max(errors, default=(0.0, "")), "repeated": checks.repeated,
        "kernels": [each.to_json() for each in checks.kernels], "lost": checks.lost or windows.lost,
        **judged(record, record),
    }  # fmt: skip


def production(place: Place) -> Found:
    """Train `speed` at each choice of precision, attention, compiler and optimizer, beside its own definitions."""
    rows: dict[str, Found] = {}
    for size, length in ((place.size, 32),) if place.size else (("mini", 64), ("base", 128)):
        workload = Workload(place.folder / f"production-{size}", size, length)
        for number, choice in enumerate(_CHOICES if place.judges else _CHOICES[:1]):
            speed = {"steps": 10, **choice}
            spec = workload.spec(8, probe=_PROBE, speed=speed, optimizer={"max_grad_norm": 0.1})
            rows[f"{size} {choice}"] = _worst(place.train(workload, spec, f"production-{size}-{number}"))
    honest = all(row["verdict"] == "pass" and not row["lost"] for row in rows.values())
    return {"asked": {"honest_kernels_are_within_their_limits": honest}, "holds": honest, "choices": rows}


def resume(place: Place) -> Found:
    """Stop a training in the middle, and go on from its checkpoint: the same bits as without a stop."""
    workload = Workload(place.folder / "resume", place.size or "mini", 32)
    learn = {"steps": 60, "evaluate_every": 30, "checkpoint_every": 10, "evaluation_rows": 64}
    spec = workload.spec(16, learn=learn)
    whole = place.train(workload, spec, "resume-whole")
    out = place.folder / "resume-stopped"
    write_spec(spec, out.with_suffix(".json"))
    command = [sys.executable, "-m", "plumbline.train", out.with_suffix(".json"), out, "--data", workload.url]
    command += ["--cache", place.folder / "cache", "--record-id", "stopped", "--platform", "stopped"]
    with subprocess.Popen(
        list(map(str, command)), env=place.environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        for line in child.stderr or ():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("part") == "learn" and event["step"] >= 20:
                    os.killpg(child.pid, signal.SIGKILL)
                    break
        threading.Thread(target=lambda: list(child.stderr or ()), daemon=True).start()
    stopped = place.train(workload, spec, "stopped", out=out)
    mine, theirs = (record.record.evidence.learn.to_json() for record in (whole, stopped))
    resumed = theirs.pop("resumed_at")
    mine.pop("resumed_at")
    asked = {"it_went_on": bool(resumed), "the_same_bits": mine == theirs}
    return {"asked": asked, "holds": all(asked.values()), "resumed_at": resumed}


def processes(place: Place) -> Found:
    """Train the same spec in one process and in two, where two GPUs are."""
    found = torch.cuda.device_count() if place.device == "cuda" else 2
    if found < 2:
        raise InconclusiveError(f"needs two GPUs, found {found}")
    workload = Workload(place.folder / "processes", place.size or "tiny", 32)
    spec = workload.spec(8, probe=_PROBE)
    one = place.train(workload, spec, "one-process")
    two = place.train(workload, spec, "two-processes", processes=2)
    verdict, equal = judged(one, two), _has_equal_windows(one, two)
    asked = {"windows_are_equal": equal, "two_processes_pass": verdict["verdict"] == "pass"}
    return {"asked": asked, "holds": all(asked.values()), "two": verdict}
