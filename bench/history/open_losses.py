"""Judge series with a loss that stands: does a night pass that should not, and when is the loss called?

Roads: `ab` (an A/B answers), `unavailable` (no A/B can), `machine` (an A/B clears the software). Reruns share 0.7 of
their night. A pass is silent if it says nothing of the loss; one of a cleared machine names it. Raw results:
`bench/results/history-open-losses.json`.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from plumbline.history.allowed import allowed_for
from plumbline.history.decision import Answers, Past
from plumbline.history.series_state import advance, decide

OUT = Path(__file__).resolve().parents[1] / "results" / "history-open-losses.json"
ALLOWED = allowed_for(num_platforms=4, num_series=40).of("throughput")
ROADS = ("ab", "unavailable", "machine")
SIZES, HISTORIES = (0.02, 0.03, 0.05, 0.10), (8, 12, 20, 60)
NUM_LOST, SD, SHARE = 40, 0.01, 0.7


def judged(job: tuple[str, float, int, int]) -> list[tuple[str, str]]:
    """Judge `history` nights, then forty with the loss; return the verdicts and reasons of the latter."""
    road, size, history, seed = job
    generator = np.random.Generator(np.random.Philox(key=[seed, history]))
    chances = generator.normal(0, SD, history + NUM_LOST)
    past, found = Past(np.zeros(0)), []
    for index, chance in enumerate(chances.tolist()):
        loss = size if index >= history else 0.0
        state = "unavailable" if road == "unavailable" else "can-differ"
        answers = Answers()
        decision = decide(past, loss + chance, ALLOWED, answers, software=state)
        if decision.needs == "reruns":
            scatter = generator.normal(0, SHARE * SD, ALLOWED.num_reruns)
            answers = Answers(tuple((loss + SHARE * chance + scatter).tolist()))
            decision = decide(past, loss + chance, ALLOWED, answers, software=state)
        if decision.needs == "ab":
            runs = SHARE * (chance + SD * generator.normal(size=(ALLOWED.ab_blocks(1, decision.noise), 4)))
            software, machine = (loss, 0.0) if road == "ab" else (0.0, loss)
            given = Answers(answers.reruns, runs[:, :2] + machine + software, runs[:, 2:] + machine)
            decision = decide(past, loss + chance, ALLOWED, given, software=state)
        past = advance(past, loss + chance, decision)
        if index >= history:
            found.append((decision.verdict, decision.reason))
    return found


def summed(series: list[list[tuple[str, str]]]) -> dict[str, Any]:
    """Return what passes before and after the first question, and when the loss is called."""
    first = [next((place for place, one in enumerate(night) if one[1] not in _SILENT), None) for night in series]
    asked = [place for place in first if place is not None]
    after = [night[place:] for night, place in zip(series, first, strict=True) if place is not None]
    silent = [sum(one[0] == "pass" and one[1] in _SILENT for one in nights) for nights in after]
    named = sum(one[0] == "pass" and one[1] not in _SILENT for nights in after for one in nights)
    num_after = max(sum(map(len, after)), 1)
    calls = sorted(next((n + 1 for n, one in enumerate(night) if one[0] == "drift"), NUM_LOST + 1) for night in series)
    middle, ninth = calls[len(calls) // 2], calls[9 * len(calls) // 10]
    return {
        "series": len(series),
        "never_asked_about": 1 - len(asked) / len(series),
        "mean_nights_before_the_question": round(sum(asked) / max(len(asked), 1), 2),
        "nights_after_it_that_pass_silently": round(sum(silent) / num_after, 4),
        "nights_after_it_that_pass_by_the_machine_s_name": round(named / num_after, 4),
        "series_with_a_silent_pass_after_it": sum(map(bool, silent)) / len(series),
        "passes_silently_on_the_last_night": sum(n[-1][0] == "pass" and n[-1][1] in _SILENT for n in series)
        / len(series),
        "median_night_of_the_call": middle if middle <= NUM_LOST else None,
        "ninth_decile": ninth if ninth <= NUM_LOST else None,
        "never_called": sum(call > NUM_LOST for call in calls) / len(series),
    }


_SILENT = ("quiet", "learning", "went-away", "improved")
"""Reasons of nights that say nothing of a loss."""


def main() -> None:
    """Judge, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--roads", nargs="+", default=ROADS, choices=ROADS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    old = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    rows = {(row["road"], row["size"], row["nights_of_history"]): row for row in old}
    with ProcessPoolExecutor(args.processes) as pool:
        for road, size, history in product(args.roads, SIZES, HISTORIES):
            jobs = [(road, size, history, seed) for seed in range(args.series)]
            row = {"road": road, "size": size, "nights_of_history": history}
            rows[road, size, history] = row | summed(list(pool.map(judged, jobs, chunksize=10)))
            print(json.dumps(rows[road, size, history]), flush=True)
            document = {"command": "python -m bench.history.open_losses", "nights_with_the_loss": NUM_LOST}
            text = json.dumps({**document, "rows": list(rows.values())}, indent=1)
            args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
