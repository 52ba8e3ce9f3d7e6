"""Change points of simulated series: false ones in noise alone, steps found and dated, autocorrelation estimated.

`python -m bench.history.change_points [--series N]`; raw results in `bench/results/history-changes.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import time
from pathlib import Path

import numpy as np

from bench.history.simulated_nights import NOISES
from plumbline import limits
from plumbline.history.changepoints import autocorrelation_within, changes

OUT = Path(__file__).resolve().parents[1] / "results" / "history-changes.json"
LENGTHS = (30, 60, 120, 365)
STEPS = ((30, 22, 9.0), (30, 22, 5.0), (40, 30, 4.0), (60, 30, 3.0), (100, 60, 3.0), (100, 60, 2.0))
"""Length, first night of the step, and its size in SD."""
NEAR = 2


def generator_of(*key: int) -> np.random.Generator:
    """Return a generator that belongs to this part, noise and length."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def false_share(noise: str, length: int, num_series: int) -> float:
    """Return the share of unchanged series in which a change is found."""
    generator = generator_of(11, list(NOISES).index(noise), length)
    return sum(bool(changes(row)) for row in NOISES[noise](generator, (num_series, length))) / num_series


def step_shares(noise: str, length: int, place: int, size: float, num_series: int) -> dict[str, float]:
    """Return the shares of series whose step is found, and found as the only change within two nights."""
    generator = generator_of(12, list(NOISES).index(noise), length, place, int(size))
    found = dated = 0
    for row in NOISES[noise](generator, (num_series, length)):
        row[place:] += size
        result = changes(row)
        found += bool(result)
        dated += len(result) == 1 and abs(result[0].index - place) <= NEAR
    return {"found": found / num_series, "dated": dated / num_series}


def least_nights(length: int, num_series: int) -> int | None:
    """Return how many nights a step of 9 SD at the end takes to be found in nine series of ten."""
    generator = generator_of(14, length)
    noise = generator.normal(size=(num_series, length))
    for nights in range(limits.SIDE_NIGHTS, length // 2):
        series = noise + 9.0 * (np.arange(length) >= length - nights)
        if sum(bool(changes(row)) for row in series) >= 0.9 * num_series:
            return nights
    return None


def mean_autocorrelation(noise: str, length: int, num_series: int) -> float:
    """Return the mean estimate about the best single split of unchanged series: it must be the noise's."""
    generator = generator_of(13, list(NOISES).index(noise), length)
    left = np.arange(limits.SIDE_NIGHTS, length - limits.SIDE_NIGHTS + 1)
    estimates = []
    for row in NOISES[noise](generator, (num_series, length)):
        gains = np.cumsum(row - row.mean())[left - 1] ** 2 / (left * (length - left))
        estimates.append(autocorrelation_within(row, [int(left[gains.argmax()])]))
    return round(float(np.mean(estimates)), 3)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=500)
    args = parser.parse_args()
    started = time.process_time()
    found: dict[str, object] = {"command": "python -m bench.history.change_points", "series": args.series}
    found |= {"machine": f"{os.cpu_count()} cores, {machine.machine()}", "level": limits.LEVEL}
    found["false_share"] = {
        noise: {length: false_share(noise, length, args.series) for length in LENGTHS} for noise in NOISES
    }
    found["steps"] = {
        noise: {
            f"{size:g} SD on night {place} of {length}": step_shares(noise, length, place, size, args.series)
            for length, place, size in STEPS
        }
        for noise in ("gaussian", "ar-0.3", "ar-0.6")
    }
    found["least_nights"] = {length: least_nights(length, max(args.series // 10, 10)) for length in (25, *LENGTHS)}
    found["mean_autocorrelation"] = {
        noise: {length: mean_autocorrelation(noise, length, args.series) for length in LENGTHS}
        for noise in ("gaussian", "ar-0.3", "ar-0.6")
    }
    found["cpu_seconds"] = round(time.process_time() - started, 1)
    print(json.dumps(found, indent=1))
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
