"""Simulate the decision engine's years, and its peers on the same series: `make simulate`.

Raw results: `bench/results/history-simulation.json`. `--years` sets how many years each noise model gets.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform as machine
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from bench.history.peers import PEERS, alarms
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


def generator_of(*key: int) -> np.random.Generator:
    """Return a generator that belongs to this part, model and trial."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def year(job: tuple[str, float, int]) -> dict[str, object]:
    """One platform-year of the engine on unchanged software."""
    noise, share, number = job
    generator = generator_of(1, MODELS.index(noise), round(10 * share), number)
    levels = make_levels(generator, noise, METRICS, NIGHTS)
    machine_part = make_machine(generator, noise, NIGHTS)
    world = World(noise, levels, np.zeros(NIGHTS), share, generator, machine=machine_part)
    tally = simulate_platform(world, ALLOWED)
    reasons = [call.reason for _, _, call in tally.calls]
    found = {"noise": noise, "share": share, "calls": len(tally.calls), "reasons": reasons, "asked": tally.asked}
    found |= {"reruns": tally.reruns, "experiments": tally.experiments, "inconclusive": tally.inconclusive}
    return found | {"looks": tally.looks}


def delay(job: tuple[str, bool, int, int]) -> float:
    """Nights until the engine calls a loss; infinite within forty nights."""
    loss, shared, history, trial = job
    generator = generator_of(2, list(LOSSES).index(loss), shared, history, trial)
    nights = history + 40
    losses = np.zeros(nights)
    losses[history:] = LOSSES[loss](np.arange(1, 41))
    levels = make_levels(generator, "gaussian", 1, nights)
    called = first_call(simulate_platform(World("gaussian", levels, losses, shared, generator), ALLOWED, begin=history))
    return math.inf if called is None else called - history + 1


def peer_year(noise: str) -> dict[str, object]:
    """Alarms of every peer and of the engine on the same four series over one year."""
    generator = generator_of(3, list(NOISES).index(noise))
    levels = make_levels(generator, noise, PEER_SERIES, NIGHTS)
    seen = 100 * np.exp(-levels)
    found: dict[str, object] = {"noise": noise}
    for name in PEERS:
        found[name] = sum(len(alarms(name, row, 20)) for row in seen)
    for shared in (False, True):
        tally = simulate_platform(World(noise, levels, np.zeros(NIGHTS), shared, generator), ALLOWED)
        found["plumbline" if not shared else "plumbline, reruns share the night"] = len(tally.calls)
    return found


def peer_delay(job: tuple[str, int]) -> dict[str, float | str]:
    """Nights until each peer and the engine report one loss, on one series."""
    loss, trial = job
    generator = generator_of(4, list(LOSSES).index(loss), trial)
    losses = np.zeros(HISTORY + 40)
    losses[HISTORY:] = LOSSES[loss](np.arange(1, 41))
    levels = make_levels(generator, "gaussian", 1, len(losses))
    values = 100 * np.exp(-(levels[0] + losses))
    found: dict[str, float | str] = {"loss": loss}
    for name in PEERS:
        nights = alarms(name, values, HISTORY, stop_at=HISTORY)
        found[name] = nights[0] - HISTORY + 1 if nights else math.inf
    called = first_call(simulate_platform(World("gaussian", levels, losses, False, generator), ALLOWED, begin=HISTORY))
    found["plumbline"] = math.inf if called is None else called - HISTORY + 1
    return found


def poisson_interval(count: int) -> tuple[float, float]:
    """Exact 95% interval of a Poisson mean (Garwood), by bisection."""

    def tail(mean: float, upto: int) -> float:
        return math.fsum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(upto + 1))

    def solve(upto: int, wanted: float) -> float:
        low, high = 1e-9, 10.0 * (upto + 5)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, upto) > wanted else (low, middle)
        return high

    return (solve(count - 1, 0.975) if count else 0.0), solve(count, 0.025)


def median(values: list[float]) -> float | None:
    """Return the median; `None` where it is infinite."""
    middle = sorted(values)[len(values) // 2]
    return middle if math.isfinite(middle) else None


def engine_part(
    pool: ProcessPoolExecutor, years: int, noises: list[str], before: list[dict[str, object]]
) -> list[dict[str, object]]:
    """Simulate `years` more of every noise model, and add them to the rows of earlier runs."""
    rows = {(str(row["noise"]), float(row["share_of_the_night_in_reruns"])): row for row in before}
    for noise in noises:
        for share in SHARES:
            old = rows.get((noise, share), {})
            done = int(old.get("years", 0))
            jobs = [(noise, share, number) for number in range(done * PLATFORMS, (done + years) * PLATFORMS)]
            runs = list(pool.map(year, jobs, chunksize=4))
            total = done + years
            calls = int(old.get("calls", 0)) + sum(int(run["calls"]) for run in runs)
            low, high = poisson_interval(calls)
            row = {"noise": noise, "share_of_the_night_in_reruns": share, "years": total, "calls": calls}
            row |= {"confirmed_false_alarms_a_year": calls / total, "interval_95": [low / total, high / total]}
            row["reasons"] = sorted([*old.get("reasons", []), *(str(one) for run in runs for one in run["reasons"])])
            for name in ("asked", "reruns", "experiments", "inconclusive", "looks"):
                new = sum(int(run[name]) for run in runs)
                row[f"{name}_a_year"] = (float(old.get(f"{name}_a_year", 0)) * done + new) / total
            print(json.dumps(row), flush=True)
            rows[noise, share] = row
    return list(rows.values())


def delay_part(pool: ProcessPoolExecutor, trials: int) -> list[dict[str, object]]:
    """Measure the nights until the engine calls each loss."""
    rows = []
    for loss in LOSSES:
        for shared in (False, True):
            for history in (20, HISTORY):
                runs = list(pool.map(delay, [(loss, shared, history, trial) for trial in range(trials)], chunksize=10))
                row = {"loss": loss, "reruns_share_the_night": shared, "nights_of_history": history, "trials": trials}
                row |= {"median_nights": median(runs), "never_within_40": sum(map(math.isinf, runs)) / trials}
                row["ninth_decile"] = (
                    sorted(runs)[int(0.9 * trials)] if not math.isinf(sorted(runs)[int(0.9 * trials)]) else None
                )
                print(json.dumps(row), flush=True)
                rows.append(row)
    return rows


def story(job: tuple[str, str, int]) -> float:
    """One series of a story, by one road."""
    name, road, trial = job
    return tell(name, road, trial, ALLOWED)


def stories_part(pool: ProcessPoolExecutor, trials: int) -> list[dict[str, object]]:
    """Judge every story by each of its roads."""
    rows = []
    for name, of in STORIES.items():
        for road in of.roads:
            jobs = [(name, road, trial) for trial in range(trials)]
            rows.append(summary_of(name, road, list(pool.map(story, jobs, chunksize=4))))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def peers_part(
    pool: ProcessPoolExecutor, trials: int, noises: list[str], before: list[dict[str, object]]
) -> dict[str, object]:
    """Run the engine and its peers on the same series."""
    years = [*(one for one in before if one["noise"] not in noises), *pool.map(peer_year, noises)]
    runs = list(pool.map(peer_delay, [(loss, trial) for loss in LOSSES for trial in range(trials)], chunksize=2))
    names = [*PEERS, "plumbline"]
    delays = {
        name: {loss: median([float(run[name]) for run in runs if run["loss"] == loss]) for loss in LOSSES}
        for name in names
    }
    alarms_a_year = {
        name: {str(one["noise"]): int(one[name]) * PLATFORMS * METRICS / PEER_SERIES for one in years} for name in names
    }
    better = [name for name in PEERS if dominates(name, delays, alarms_a_year)]
    return {"series": PEER_SERIES, "trials": trials, "median_delay": delays, "false_alarms_a_year": alarms_a_year,
            "years": years, "fewer_false_alarms_and_shorter_delay_than_plumbline": better}  # fmt: skip


def dominates(name: str, delays: dict[str, dict[str, float | None]], false: dict[str, dict[str, float]]) -> bool:
    """Whether a peer has fewer false alarms over all noises, and a shorter delay for some loss and none longer."""
    fewer = sum(false[name].values()) < sum(false["plumbline"].values())
    pairs = [(delays[name][loss] or math.inf, delays["plumbline"][loss] or math.inf) for loss in LOSSES]
    return fewer and all(theirs <= ours for theirs, ours in pairs) and any(theirs < ours for theirs, ours in pairs)


def main() -> None:
    """Simulate, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=2)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--story-trials", type=int, default=24)
    parser.add_argument("--peer-trials", type=int, default=25)
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--add", action="store_true", help="add the years to those of the raw file")
    parser.add_argument("--noises", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--parts", nargs="+", default=["stories", "engine", "delay", "peers"])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    started = time.perf_counter()
    found: dict[str, object] = json.loads(args.out.read_text()) if args.out.exists() else {}
    found |= {"command": "make simulate", "machine": f"{os.cpu_count()} cores, {machine.machine()}"}
    plain = {name: getattr(ALLOWED, name) for name in ALLOWED.__dataclass_fields__}
    found["allowed"] = {name: value for name, value in plain.items() if isinstance(value, (int, float))}
    with ProcessPoolExecutor(args.processes) as pool:
        if "stories" in args.parts:
            found["stories"] = stories_part(pool, args.story_trials)
            keep(args.out, found, started)
        if "delay" in args.parts:
            found["delay"] = delay_part(pool, args.trials)
            keep(args.out, found, started)
        if "peers" in args.parts:
            old = found.get("peers", {}).get("years", []) if args.add else []
            noises = [noise for noise in args.noises if noise in NOISES]
            peers = peers_part(pool, args.peer_trials, noises, old)
            found["peers"] = peers
            print(json.dumps({name: peers[name] for name in ("median_delay", "false_alarms_a_year")}, indent=1))
            keep(args.out, found, started)
        before = found.get("engine", []) if args.add else []
        for noise in args.noises if "engine" in args.parts else ():
            before = engine_part(pool, args.years, [noise], before)
            found["engine"] = before
            keep(args.out, found, started)


def keep(out: Path, found: dict[str, object], started: float) -> None:
    """Write the raw results so far."""
    found["seconds_of_the_last_run"] = round(time.perf_counter() - started, 1)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
