"""Runs with a measured throughput, for the tests of the gates."""

from __future__ import annotations

from typing import Any

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Evidence, SpeedEvidence

from .conftest import make_record

BREAKDOWN = {"data_wait": 0.001, "host_to_device": 0.001, "forward": 0.02, "backward": 0.04, "optimizer": 0.008}
SAMPLES: dict[str, tuple[float | None, ...]] = {
    "own_cpu": (1.0, 1.0, 1.0), "foreign_cpu": (0.1, 0.1, 0.1), "cpu_steal": (0.0, 0.0, 0.0), "load": (1.0, 1.0, 1.0),
    "gpu_throttle_reasons": (0.0, 0.0, 0.0), "gpu_clock_mhz": (1500.0, 1500.0, 1500.0),
}  # fmt: skip
RATES = {"gemm_flops": 1e12, "gemm_flops_after": 1e12}
COMPUTE = ("forward", "backward", "optimizer")


def speed(slower: float = 0.0, **changes: Any) -> SpeedEvidence:
    phases = BREAKDOWN | changes.get("breakdown", {})
    seconds = sum(phases.values()) * (1 + slower)
    return SpeedEvidence(
        steps=100, warmup_steps=16, **_log(116),
        samples_per_second=32 / seconds, tokens_per_second=None, step_seconds=seconds,
        step_seconds_quartiles=(seconds * 0.995, seconds * 1.005), step_seconds_p95=seconds * 1.02, breakdown=phases,
        microbenchmarks=RATES | changes.get("rates", {}), samples=SAMPLES | changes.get("samples", {}),
        wall_seconds=100 * seconds,
    )  # fmt: skip


def _log(steps: int) -> dict[str, Any]:
    """Return what a whole record says of each step that `speed` trained."""
    marks = dict.fromkeys(("input_ids", "labels"), ("0" * 16,) * steps)
    return {
        "num_rows": (32,) * steps, "batches": marks, "losses": (0.5,) * steps, "learning_rates": (1e-3,) * steps,
        "gradient_norms": (0.5,) * steps, "weights": ((0, "0" * 16),), "dropout": (),
    }  # fmt: skip


def record(evidence: SpeedEvidence, platform: str = "left") -> LoadedRecord:
    made = make_record()
    changed = made.record.replace(platform=platform, evidence=made.record.evidence.replace(speed=evidence.to_json()))
    return LoadedRecord(changed, made.folder, made.arrays)


def upgraded(made: LoadedRecord) -> LoadedRecord:
    """Return the record with a newer package: only then can the software be the cause."""
    packages = made.record.fingerprint.packages | {"torch": "9.9.9"}
    fingerprint = made.record.fingerprint.replace(packages=packages)
    return LoadedRecord(made.record.replace(fingerprint=fingerprint), made.folder, made.arrays)


def times(factor: float, *names: str) -> dict[str, float]:
    return {name: BREAKDOWN[name] * factor for name in names}


def only(platform: str = "left", evidence: SpeedEvidence | None = None) -> LoadedRecord:
    """Return a record with only a speed part."""
    made = make_record()
    spec = made.record.spec.replace(probe=None, speed={"steps": 100, "checks": False})
    result = Evidence(speed=evidence or speed())
    return LoadedRecord(
        made.record.replace(platform=platform, spec=spec.to_json(), spec_sha256=spec.digest, evidence=result.to_json()),
        made.folder,
    )


def run(rate: float | None = 100.0, **changes: Any) -> SpeedEvidence:
    """Return a run of bare numbers; `samples` are means, or tuples of values."""
    samples = {
        key: value if isinstance(value, tuple) else (value,) for key, value in changes.pop("samples", {}).items()
    }
    fields = {"steps": 64, "warmup_steps": 3, "tokens_per_second": None, "step_seconds": 0.25} | changes
    log = _log(fields["steps"] + fields["warmup_steps"])
    return SpeedEvidence(samples_per_second=rate, samples=samples, **(log | fields))


def computed(seconds: float, **samples: Any) -> SpeedEvidence:
    """Return a run whose time is all computation."""
    rates = samples.pop("rates", {})
    return run(100 / seconds, step_seconds=seconds, breakdown={"forward": seconds}, samples=samples).replace(
        microbenchmarks=rates
    )
