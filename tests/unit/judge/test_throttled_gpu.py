"""Throttling of a real GPU: the readings of `bench/results/gpu/mfu-large.json`, at a lower clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plumbline.judge import compare
from plumbline.schema.evidence import SpeedEvidence

from .made_speed import COMPUTE, record, upgraded

MEASURED = Path(__file__).resolve().parents[3] / "bench" / "results" / "gpu" / "mfu-large.json"
POWER_CAP, THERMAL = 4.0, 64.0


def measured() -> SpeedEvidence:
    """Return the run with the readings under load alone: the sampler reads the measured steps."""
    measured = json.loads(MEASURED.read_text("utf-8"))["speed"]
    run = SpeedEvidence.model_validate({name: value for name, value in measured.items() if name != "trail"})
    under_load = [index for index, share in enumerate(run.samples["gpu_utilization"]) if share == 100.0]
    assert len(under_load) == 6
    return run.replace(samples={name: tuple(one[index] for index in under_load) for name, one in run.samples.items()})


def throttled(run: SpeedEvidence, reason: float) -> SpeedEvidence:
    """Return the run at 1380 of 1980 MHz, as long as the clock makes it."""
    slower = 1980 / 1380
    readings = len(run.samples["gpu_clock_mhz"])
    assert run.samples_per_second is not None
    assert run.step_seconds is not None
    assert run.wall_seconds is not None
    return run.replace(
        samples_per_second=run.samples_per_second / slower,
        step_seconds=run.step_seconds * slower,
        wall_seconds=run.wall_seconds * slower,
        breakdown={name: value * (slower if name in COMPUTE else 1) for name, value in run.breakdown.items()},
        samples=run.samples
        | {"gpu_clock_mhz": (1380.0,) * readings, "gpu_throttle_reasons": (reason,) * readings},
    )  # fmt: skip


@pytest.mark.parametrize("reason", [POWER_CAP, THERMAL])
def test_a_throttled_gpu_is_throttling_also_beside_newer_software(reason: float) -> None:
    slow = throttled(measured(), reason)
    judgement = compare(record(measured()), upgraded(record(slow)), confirms=slow)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["throttling"])


def test_a_gpu_as_slow_at_its_full_clock_is_software() -> None:
    run = measured()
    slow = throttled(run, POWER_CAP).replace(samples=run.samples)
    judgement = compare(record(run), upgraded(record(slow)), confirms=slow)
    assert [cause.code for cause in judgement.causes] == ["software"]
