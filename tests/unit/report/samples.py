"""Sample rounds: records of a two-layer BERT in memory, with verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from plumbline.records import LoadedRecord
from plumbline.report.history import HistoryPoint, Points
from plumbline.report.html import render_page
from plumbline.report.view import Records, ReportView, build_view
from plumbline.schema.digest import digest_json
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import RunSpec
from plumbline.schema.verdict import Cause, Divergence, Finding, PlatformResult, RoundVerdict

STEPS = 20
BEGIN = datetime(2026, 11, 20, 2, 0, 4, tzinfo=UTC)
_PARTS = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
          "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")  # fmt: skip


Given = Mapping[str, LoadedRecord | Sequence[LoadedRecord]]
"""Record, or records of all workloads, of each platform."""


def by_workload(given: Given) -> Records:
    """Return the records of each workload by platform."""
    records: dict[str, dict[str, LoadedRecord]] = {}
    for name, some in given.items():
        for loaded in [some] if isinstance(some, LoadedRecord) else some:
            records.setdefault(loaded.record.spec.workload, {})[name] = loaded
    return records


def made_view(verdict: RoundVerdict, records: Given, *, baselines: Given | None = None, **more: Any) -> ReportView:
    """Return the report's content for a round."""
    return build_view(verdict, by_workload(records), baselines=by_workload(baselines or {}), **more)


def report_page(verdict: RoundVerdict, records: Given, history: Points | None = None, **more: Any) -> str:
    """Render the report of a round."""
    return render_page(made_view(verdict, records, history=history, **more))


def modules(layers: int) -> list[tuple[str, str]]:
    result = [("bert.embeddings.word_embeddings", "Embedding"), ("bert.embeddings.LayerNorm", "LayerNorm")]
    for layer in range(layers):
        result += [
            (f"bert.encoder.layer.{layer}.{part}", "LayerNorm" if "Norm" in part else "Linear") for part in _PARTS
        ]
    return [*result, ("bert.pooler.dense", "Linear"), ("classifier", "Linear")]


def spec(workload: str = "bert-tiny-reviews", layers: int = 2) -> RunSpec:
    return RunSpec(
        workload=workload,
        task="sequence-classification",
        model={
            "hidden_size": 128, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 512,
            "max_position_embeddings": 512, "vocab_size": 2048, "num_labels": 2, "weights_key": "weights/x",
            "weights_sha256": "b" * 64,
        },
        data={"name": "reviews", "manifest_sha256": "c" * 64, "sequence_length": 64},
        seed=7,
        batch_size=32,
        probe={"steps": STEPS},
        speed={"steps": 50, "precision": "fp32"},
        learn={"steps": 300},
    )  # fmt: skip


def fingerprint(**changes):
    result = {
        "hostname": "worker-1", "os": "Linux 6.8 x86_64", "python": "3.11.9", "plumbline": "0.1.0",
        "cpu": {"model": "AMD EPYC 7R13", "isa": "AVX512", "num_cores": 8, "num_threads": 4},
        "packages": {"torch": "2.13.0", "transformers": "5.23.0", "tokenizers": "0.23.3", "numpy": "2.4.6"},
        "numerics": {"fp32_precision.cuda.matmul": "ieee", "deterministic_algorithms": True},
        "mantissa_bits": {"linear": 23, "matmul": 23}, "environment": {"OMP_NUM_THREADS": "4"},
    }  # fmt: skip
    return {**result, **changes}


def _probe(layers: int, noise: float, start: str, wobble: float) -> tuple[dict, np.ndarray]:
    """Return sketches that differ by `wobble`, and by `noise` from module `start` on."""
    generator = np.random.default_rng(5)
    other = np.random.default_rng(9)
    taps, sketches = [], []
    on = False
    names = [("forward", name, kind) for name, kind in modules(layers)]
    names += [("gradient", f"{name}.weight", kind) for name, kind in reversed(modules(layers))]
    for stage, name, kind in names:
        on = on or (bool(start) and name.startswith(start))
        base = generator.normal(size=64)
        error = (noise if on else wobble) * math.exp(other.normal(0, 0.25))
        value = base + error * other.normal(size=64)
        taps.append({
            "step": 0, "stage": stage, "name": name, "kind": kind, "dtype": "float32", "shape": (32, 64, 128),
            "norm": float(np.linalg.norm(base)), "sha256": digest_json([name, stage, value.tolist()]),
        })  # fmt: skip
        sketches.append(value)
    losses = [0.71 - 0.012 * step + 0.01 * math.sin(step) + (noise * 2 + wobble) * 1.08**step for step in range(STEPS)]
    probe = {
        "batches": {"labels": ["d" * 16] * STEPS}, "losses": losses, "defined_losses": losses,
        "generators": {"torch": [(step, "e" * 16) for step in range(STEPS)]}, "is_training": [True] * STEPS,
        "logits": [digest_json(loss)[:16] for loss in losses], "logits_dtype": ["float32"] * STEPS,
        "loss_dtype": ["float32"] * STEPS, "gradient_norms": [1.2] * STEPS, "clipped_norms": [1.0] * STEPS,
        "gradients": ["a" * 16] * STEPS, "learning_rates": [5e-4] * STEPS, "dropout": [],
        "weights": [(step + 1, digest_json([loss])[:16]) for step, loss in enumerate(losses)],
        "taps": taps, "optimizer": [],
    }  # fmt: skip
    return probe, np.array(sketches)


def record(
    platform: str, *, layers=2, noise=0.0, start="", wobble=0.0, rate=612.0, workload="bert-tiny-reviews", **kept
):
    """Return a record; `kept` overrides fields of the fingerprint or record."""
    probe, sketches = _probe(layers, noise, start, wobble)
    step = 32 / rate
    breakdown = {"data_wait": 0.02, "host_to_device": 0.01, "forward": 0.30, "backward": 0.52, "optimizer": 0.12}
    learn = [0.69 * math.exp(-index / 120) + 0.25 + 0.03 * math.sin(index * 1.7) + noise * 4 for index in range(300)]
    evidence = {
        "probe": probe,
        "speed": {
            "steps": 50, "warmup_steps": 8, "samples_per_second": rate, "tokens_per_second": rate * 64,
            "step_seconds": step, "breakdown": {name: share * step for name, share in breakdown.items()}, "mfu": 0.41,
        },
        "learn": {"steps": 300, "losses": learn, "evaluations": [], "weights": [[300, "f" * 16]]},
    }  # fmt: skip
    chosen = spec(workload, layers)
    result = RunRecord.model_validate({
        "record_id": kept.pop("record_id", f"{platform}-20261120"), "platform": platform, "round_id": "20261120-020000",
        "spec_sha256": chosen.digest, "spec": chosen, "started_at": BEGIN, "finished_at": BEGIN + timedelta(seconds=41),
        "evidence": kept.pop("evidence", evidence), "exit": kept.pop("exit", {"status": "completed"}),
        "timings": {"stage": 0.8, "probe": 6.2, "speed": 9.1, "learn": 22.0}, "fingerprint": fingerprint(**kept),
    })  # fmt: skip
    return LoadedRecord(record=result, folder=Path(result.record_id), arrays={"sketches": {"sketch": sketches}})


def finding(check="probe.forward", outcome="pass", **more):
    return Finding(check=check, outcome=outcome, **more)


def passing(**more) -> PlatformResult:
    findings = (
        finding("data.rows", metric="rows that differ", observed=0.0, limit=0.0, against="platform aws"),
        finding("probe.forward", metric="worst module output", observed=1.9e-7, limit=4.8e-6, against="platform aws"),
        finding("learn.accuracy", metric="accuracy", observed=0.8047, limit=0.02, against="baseline aws-20261101"),
    )
    result = {"verdict": "pass", "findings": findings, "accuracy": 0.8047, "samples_per_second": 612.0}
    timings = {"wait for worker": 2.2, "stage": 0.8, "probe": 6.2, "speed": 9.1, "learn": 22.0, "total": 41.0}
    return PlatformResult(**{**result, "timings": timings, "records": ("aws-20261120",), **more})


def drifted(**more) -> PlatformResult:
    cause = Cause(
        code="precision", sure="confirmed", why="linear layers keep 10 bits of mantissa in place of 23: TF32 is on",
        evidence=("output of bert.encoder.layer.0.attention.self.query is 3.1e-4 off, limit 4.8e-6",
                  "an fp64 run of the same step is 3.0e-4 from azure and 2.1e-7 from aws"),
        suspects=("numerics fp32_precision.cuda.matmul: ieee on aws, tf32 on azure",),
        tried=("settings imposed before every step (fp32_precision = ieee): the difference went away (1.8e-7)",),
    )  # fmt: skip
    first = "bert.encoder.layer.0.attention.self.query"
    findings = (
        finding("probe.forward", "drift", metric=f"relative error of {first}'s output at step 0", observed=3.1e-4,
                limit=4.8e-6, against="platform aws", detail="17 modules over their limits"),
        finding("probe.loss", "drift", metric="relative difference of the loss at step 0", observed=8.4e-5,
                limit=4.8e-6, against="platform aws"),
        finding("learn.accuracy", metric="accuracy", observed=0.8027, limit=0.02, against="baseline azure-20261101"),
    )  # fmt: skip
    result = {
        "verdict": "drift", "findings": findings, "causes": (cause,), "accuracy": 0.8027, "samples_per_second": 655.0,
        "first_divergence": Divergence(stage="forward", step=0, at=first),
        "records": ("azure-20261120",), "timings": {"wait for worker": 3.4, "stage": 1.1, "probe": 6.0, "total": 44.0},
    }  # fmt: skip
    return PlatformResult(**{**result, **more})


def verdict_of(verdict, platforms, **more) -> RoundVerdict:
    timings = {
        "dispatch": 2.4,
        "train": 44.0,
        "gather": 0.9,
        "judge": 0.3,
        "confirm": 9.8,
        "report": 0.2,
        "total": 58.1,
    }
    result = {"round": "20261120-020000-7f3a", "suite": "nightly", "verdict": verdict, "platforms": platforms}
    return RoundVerdict(**{**result, "timings": timings, "flow_run": "http://127.0.0.1:4200/runs/flow-run/1", **more})


NAMES = (
    "aws", "azure", "gcp", "on-prem-frankfurt", "notebook", "aws-spot-us-west-2", "kubernetes-on-prem-paris",
    "azure-nv-a10-v5", *(f"region-{index}-pool-with-a-long-name" for index in range(8, 20)),
)  # fmt: skip


def many(count):
    """Return a round of `count` platforms with one or two drifts: verdict, records, history."""
    names, drifts = NAMES[:count], {"azure", "kubernetes-on-prem-paris"}
    records, platforms, points = {}, {}, {}
    noise = np.random.default_rng(1)
    for index, name in enumerate(names):
        bad = name in drifts
        change = {"noise": 3e-4, "start": "bert.encoder.layer.0"} if bad else {"wobble": 1e-7 * index}
        records[name] = record(name, rate=612.0 + 7 * index, **change)
        platforms[name] = drifted() if bad else passing()
        points[name] = [
            HistoryPoint(
                f"r{night}", (BEGIN - timedelta(days=29 - night)).strftime("%Y-%m-%d"),
                "drift" if bad and night > 26 else "pass",
                (612 + 14 * index) * (0.93 if bad and night > 21 else 1) * (1 + 0.008 * noise.normal()),
            )
            for night in range(30)
        ]  # fmt: skip
    return verdict_of("drift", platforms), records, points


def nights(last="drift", name="azure", count=30, dip=22) -> Points:
    """Return a month of nights with a loss of speed."""
    points: dict[str, list[HistoryPoint]] = {"aws": [], name: []}
    noise = np.random.default_rng(3)
    for index in range(count):
        when = (BEGIN - timedelta(days=count - 1 - index)).strftime("%Y-%m-%d")
        for platform, line in points.items():
            slow = 0.93 if platform == name and index >= dip else 1.0
            outcome = last if platform == name and index >= count - 3 else "pass"
            rate = None if index == 11 and platform == name else 612 * slow * (1 + 0.008 * noise.normal())
            line.append(HistoryPoint(f"round-{index}", when, outcome, rate))
    return points
