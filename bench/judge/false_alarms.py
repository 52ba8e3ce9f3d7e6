"""Simulated false alarms of the throughput gate, CUSUM and change points: `python bench/judge/false_alarms.py`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

from plumbline.judge.changepoint import changes
from plumbline.judge.cusum import ALLOWANCE, threshold
from plumbline.judge.noise import noise_floor, recommended_drop

OUT = Path(__file__).resolve().parents[1] / "results" / "false_alarms.json"
NIGHTS = 365


def nights(generator: np.random.Generator, rho: float, series: int, count: int) -> np.ndarray:
    """Standard normal nights with lag-1 autocorrelation `rho`."""
    noise = generator.normal(size=(series, count))
    values = np.empty_like(noise)
    values[:, 0] = noise[:, 0]
    for night in range(1, count):
        values[:, night] = rho * values[:, night - 1] + np.sqrt(1 - rho**2) * noise[:, night]
    return values


def cusum_alarms(values: np.ndarray, height: float, shift: float = 0.0) -> tuple[float, float]:
    """Share of years with an alarm, and the median night of the first one."""
    up = np.zeros(len(values))
    down = np.zeros(len(values))
    first = np.full(len(values), np.inf)
    for night in range(values.shape[1]):
        score = values[:, night] - shift
        up, down = np.maximum(0, up + score - ALLOWANCE), np.maximum(0, down - score - ALLOWANCE)
        hit = ((up > height) | (down > height)) & np.isinf(first)
        first[hit] = night
    return float(np.isfinite(first).mean()), float(np.median(first))


def gate(generator: np.random.Generator, runs: int, platforms: int) -> float:
    """False alarms a year of the calibrated gate, run and rerun held against one accepted baseline."""
    alarms = []
    for _ in range(400):
        past = 100 * (1 + 0.01 * generator.normal(size=runs))
        limit = recommended_drop(noise_floor(past.tolist()), platforms=platforms, false_alarms_a_year=1.0)
        assert limit is not None
        for _ in range(platforms):
            baseline = 100 * (1 + 0.01 * generator.normal())
            both = 100 * (1 + 0.01 * generator.normal(size=(2, NIGHTS)))
            alarms.append(((1 - both / baseline) > limit).all(axis=0).sum())
    return float(np.mean(alarms)) * platforms


def main() -> None:
    """Simulate, print, and keep."""
    generator = np.random.Generator(np.random.Philox(key=1))
    started = time.perf_counter()
    found: dict[str, object] = {"command": "python bench/judge/false_alarms.py"}
    found["cusum"] = [
        {
            "rho": rho,
            "height": threshold(rho),
            "years_with_a_false_alarm": cusum_alarms(nights(generator, rho, 2000, NIGHTS), threshold(rho))[0],
            "median_nights_to_find_1.5_sd": cusum_alarms(nights(generator, rho, 500, 200), threshold(rho), 1.5)[1],
        }
        for rho in (0.0, 0.3, 0.5, 0.7)
    ]
    found["gate"] = [
        {"calibration_runs": runs, "platforms": platforms, "false_alarms_a_year": gate(generator, runs, platforms)}
        for runs, platforms in ((5, 2), (10, 2), (30, 2), (30, 4))
    ]
    quiet = [bool(changes(row.tolist())) for row in nights(generator, 0.0, 60, 60)]
    shifted = nights(generator, 0.0, 40, 60)
    shifted[:, 30:] += 2.0
    hits = [any(abs(one.index - 30) <= 2 for one in changes(row.tolist())) for row in shifted]
    found["change_points"] = {
        "series_of_60_nights_with_a_false_change": float(np.mean(quiet)),
        "found_within_2_nights_of_a_step_of_2_sd": float(np.mean(hits)),
    }
    found["seconds"] = round(time.perf_counter() - started, 1)
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
