"""Simulate the decision engine's years, and a peer on the same series: `make simulate`.

Raw results: `bench/results/history-simulation.json`. `--years` sets how many years each noise model gets, and
`--noises` chooses the models: earlier rows of the others stay.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform as machine
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.history.peers import PEER, alarms
from bench.history.scenarios import STORIES, summary_of, tell
from bench.history.simulated_nights import (
    MODELS,
    NOISES,
    World,
    first_call,
    make_levels,
    make_machine,
    simulate_platform,
)
from plumbline.judge.history.allowed import allowed_for

OUT = Path(__file__).resolve().parents[1] / "results" / "history-simulation.json"
PLATFORMS, METRICS, NIGHTS = 4, 10, 365
ALLOWED = allowed_for(num_platforms=PLATFORMS, num_series=PLATFORMS * METRICS)
PEER_SERIES = 4
HISTORY = 60
SHARES = (0.0, 0.7, 1.0)
"""Shares of their night's level in its reruns: fresh draws, in between, a machine that is slow all night."""
LOSSES = {
    "step 10%": lambda night: 0.10 + 0 * night,
    "step 5%": lambda night: 0.05 + 0 * night,
    "step 2%": lambda night: 0.02 + 0 * night,
    "creep 0.5% a night": lambda night: 0.005 * night,
    "creep 0.2% a night": lambda night: 0.002 * night,
}
COUNTS = ("asked", "reruns", "experiments", "inconclusive", "looks")


def generator_of(*key: int) -> np.random.Generator:
    """Return a generator that belongs to this part, model and trial."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def year(job: tuple[str, float, int]) -> dict[str, Any]:
    """One platform-year of the engine on unchanged software."""
    noise, share, number = job
    generator = generator_of(1, MODELS.index(noise), round(10 * share), number)
    levels = make_levels(generator, noise, METRICS, NIGHTS)
    machine_part = make_machine(generator, noise, NIGHTS)
    world = World(noise, levels, np.zeros(NIGHTS), share, generator, machine=machine_part)
    tally = simulate_platform(world, ALLOWED)
    counts = {name: getattr(tally, name) for name in COUNTS}
    return counts | {"reasons": [call.reason for _, _, call in tally.calls]}


def engine_rows(pool: ProcessPoolExecutor, years: int, noise: str) -> list[dict[str, Any]]:
    """Simulate the years of a noise model, for each share of a night in its reruns."""
    rows = []
    for share in SHARES:
        runs = list(pool.map(year, [(noise, share, number) for number in range(years * PLATFORMS)], chunksize=4))
        reasons = sorted(reason for run in runs for reason in run["reasons"])
        row = {"noise": noise, "share_of_the_night_in_reruns": share, "years": years, "calls": len(reasons)}
        row |= {"confirmed_false_alarms_a_year": len(reasons) / years, "reasons": reasons}
        rows.append(row | {f"{name}_a_year": sum(run[name] for run in runs) / years for name in COUNTS})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def peer_year(noise: str) -> dict[str, Any]:
    """Alarms of the peer and of the engine on the same four series over one year."""
    generator = generator_of(3, list(NOISES).index(noise))
    levels = make_levels(generator, noise, PEER_SERIES, NIGHTS)
    found = sum(len(alarms(row, 20)) for row in 100 * np.exp(-levels))
    tally = simulate_platform(World(noise, levels, np.zeros(NIGHTS), False, generator), ALLOWED)
    return {"noise": noise, PEER: found, "plumbline": len(tally.calls)}


def peer_delay(job: tuple[str, int]) -> dict[str, Any]:
    """Nights until the peer and the engine report one loss, on one series; infinite within forty nights."""
    loss, trial = job
    generator = generator_of(4, list(LOSSES).index(loss), trial)
    losses = np.zeros(HISTORY + 40)
    losses[HISTORY:] = LOSSES[loss](np.arange(1, 41))
    levels = make_levels(generator, "gaussian", 1, len(losses))
    nights = alarms(100 * np.exp(-(levels[0] + losses)), HISTORY, stop_at=HISTORY)
    called = first_call(simulate_platform(World("gaussian", levels, losses, False, generator), ALLOWED, begin=HISTORY))
    first = {PEER: nights[0] if nights else math.inf, "plumbline": math.inf if called is None else called}
    return {"loss": loss} | {name: night - HISTORY + 1 for name, night in first.items()}


def median(values: list[float]) -> float | None:
    """Return the median; `None` where it is infinite."""
    middle = sorted(values)[len(values) // 2]
    return middle if math.isfinite(middle) else None


def story(job: tuple[str, str, int]) -> float:
    """One series of a story, by one road."""
    name, road, trial = job
    return tell(name, road, trial, ALLOWED)


def story_rows(pool: ProcessPoolExecutor, trials: int) -> list[dict[str, Any]]:
    """Judge every story by each of its roads."""
    rows = []
    for name, of in STORIES.items():
        for road in of.roads:
            jobs = [(name, road, trial) for trial in range(trials)]
            rows.append(summary_of(name, road, list(pool.map(story, jobs, chunksize=4))))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def beside_the_peer(
    pool: ProcessPoolExecutor, trials: int, noises: Sequence[str], before: list[dict[str, Any]]
) -> dict[str, Any]:
    """Run the engine and its peer on the same series."""
    years = [*(row for row in before if row["noise"] not in noises), *pool.map(peer_year, noises)]
    runs = list(pool.map(peer_delay, [(loss, trial) for loss in LOSSES for trial in range(trials)], chunksize=2))
    names, each = (PEER, "plumbline"), PLATFORMS * METRICS / PEER_SERIES
    delays = {
        name: {loss: median([run[name] for run in runs if run["loss"] == loss]) for loss in LOSSES} for name in names
    }
    alarms_a_year = {name: {row["noise"]: row[name] * each for row in years} for name in names}
    found = {"median_delay": delays, "false_alarms_a_year": alarms_a_year}
    print(json.dumps(found, indent=1))
    return {"series": PEER_SERIES, "trials": trials, **found, "years": years}


def main() -> None:
    """Simulate, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=2)
    parser.add_argument("--story-trials", type=int, default=24)
    parser.add_argument("--peer-trials", type=int, default=25)
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--noises", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--parts", nargs="+", default=["stories", "engine", "peers"])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    started = time.perf_counter()
    found: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    found |= {"command": "make simulate", "machine": f"{os.cpu_count()} cores, {machine.machine()}"}
    plain = {name: getattr(ALLOWED, name) for name in ALLOWED.__dataclass_fields__}
    found["allowed"] = {name: value for name, value in plain.items() if isinstance(value, (int, float))}

    def keep(**part: Any) -> None:
        found.update(part, seconds_of_the_last_run=round(time.perf_counter() - started, 1))
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    with ProcessPoolExecutor(args.processes) as pool:
        if "stories" in args.parts:
            keep(stories=story_rows(pool, args.story_trials))
        if "peers" in args.parts:
            noises = [noise for noise in args.noises if noise in NOISES]
            keep(peers=beside_the_peer(pool, args.peer_trials, noises, found.get("peers", {}).get("years", [])))
        for noise in args.noises if "engine" in args.parts else ():
            others = [row for row in found.get("engine", []) if row["noise"] != noise]
            keep(engine=others + engine_rows(pool, args.years, noise))


if __name__ == "__main__":
    main()
