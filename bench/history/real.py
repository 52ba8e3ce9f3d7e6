"""Real series of asv beside the peers: changes a year, delay of injected losses, nights that a person must look at.

`python -m bench.history.real FOLDER`

FOLDER holds one machine's asv results (scipy's are in the repository pv/scipy-bench, under `results/i7`; its data are
not copied here). Each series is judged night after night without experiments, as `history --from` judges it. A loss of
2, 4 or 8 robust SD of a night is injected into the longest stretch without a change that any tool reports. Raw results:
`bench/results/history-real.json`.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.history.peers import PEERS, alarms, changes_of
from plumbline.history.allowed import allowed_for
from plumbline.history.changepoints import changes
from plumbline.history.decision import Past
from plumbline.history.external import parse_external
from plumbline.history.series_state import advance, decide

OUT = Path(__file__).resolve().parents[1] / "results" / "history-real.json"
TOOLS = [name for name, (_, single, _) in PEERS.items() if not single]
SIZES = (2.0, 4.0, 8.0)
NUM_LOST, BEFORE, NIGHTS = 20, 60, 365
LOOKS = 12
"""Questions a year, as `history --from` allows them."""
NEWEST = 160
"""Number of newest nights that are judged night after night."""


def series_of(folder: Path, environment: str, count: int) -> dict[str, np.ndarray]:
    """Return `count` series of times, evenly chosen by name, of one environment; each has most of the nights."""
    files = {path.name: path.read_text() for path in sorted(folder.glob(f"*{environment}*.json"))}
    found = {}
    for history in parse_external(
        {name: _first_parameters(text) for name, text in files.items()}, where="asv"
    ).histories:
        values = np.array([math.nan if value is None else value for value in history.values], dtype=np.float64)
        kept = np.log(values[np.isfinite(values) & (values > 0)])
        if len(kept) > len(files) / 2 and history.metric.worse == "higher" and len(np.unique(kept)) > len(kept) / 2:
            found[history.metric.name] = kept
    return {name: found[name] for name in sorted(found)[:: max(len(found) // count, 1)][:count]}


def _first_parameters(text: str) -> str:
    """Keep the first of a benchmark's parameters: the others are hundreds of similar series."""
    document = json.loads(text)
    for name, result in document["results"].items():
        if isinstance(result, list) and result and isinstance(result[0], list) and len(result) > 1 and result[1]:
            document["results"][name] = [result[0][:1], [one[:1] for one in result[1]], *result[2:3]]
    return json.dumps(document)


def engine(scores: np.ndarray, begin: int) -> tuple[list[int], int, int]:
    """Return the nights of new calls from `begin` on, the number of open nights, and of nights with a standing loss."""
    allowed = allowed_for(num_platforms=1, num_series=1, detections_a_year=LOOKS, has_experiments=False)
    past, calls, num_open, num_standing = Past(np.zeros(0), floor=1e-3), [], 0, 0
    for night, score in enumerate(scores.tolist()):
        decision = decide(past, score, allowed, software="unavailable")
        past = advance(past, score, decision)
        if night >= begin:
            num_open += decision.verdict == "inconclusive"
            num_standing += decision.reason == "open-call"
            calls += [night] if decision.new else []
    return calls, num_open, num_standing


def judged(job: tuple[str, np.ndarray]) -> dict[str, Any]:
    """Judge one series as it is, and with each injected loss."""
    name, scores = job
    values, newest = 100 * np.exp(-scores), scores[-NEWEST:]
    begin = min(BEFORE, len(newest) // 2)
    seen = 100 * np.exp(-newest)
    raw: dict[str, Any] = {}
    for tool in TOOLS:
        nights = alarms(tool, seen, begin)
        raw[tool] = {"calls": len(nights), "looks": len(set(nights))}
    calls, num_open, num_standing = engine(newest, begin)
    # A change that a tool reports again is counted once, and so is a loss that lasts.
    raw["plumbline"] = {"calls": len(calls), "looks": len(calls) + num_open, "standing": num_standing}
    found = {tool: changes_of(tool, values) for tool in TOOLS} | {"plumbline": [one.index for one in changes(values)]}
    edges = sorted({0, len(scores), *(index for tool in found for index in found[tool])})
    first, last = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
    document = {"series": name, "nights": len(scores), "judged": len(newest) - begin, "raw": raw, "changes": found}
    quiet = scores[first:last][: BEFORE + NUM_LOST]
    history = len(quiet) - NUM_LOST
    if history < NUM_LOST:
        return document | {"quiet_nights": int(last - first)}
    spread = 1.4826 * float(np.median(np.abs(quiet - np.median(quiet))))
    return document | {"quiet_nights": int(last - first), "delays": _delays(quiet, history, spread)}


def _delays(quiet: np.ndarray, history: int, spread: float) -> dict[str, dict[str, float | None]]:
    delays: dict[str, dict[str, float | None]] = {}
    for size in SIZES:
        lost = quiet + np.where(np.arange(len(quiet)) >= history, size * spread, 0.0)
        by_tool = {tool: alarms(tool, 100 * np.exp(-lost), history, stop_at=history)[:1] for tool in TOOLS}
        by_tool["plumbline"] = engine(lost, history)[0][:1]
        delays[f"{size:g} SD"] = {tool: nights[0] - history + 1 if nights else None for tool, nights in by_tool.items()}
    return delays


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each tool's changes and nights to look at a year, and its median delays."""
    years = sum(row["judged"] for row in rows) / NIGHTS
    found: dict[str, Any] = {}
    for tool in [*TOOLS, "plumbline"]:
        delays = {}
        for size in (f"{one:g} SD" for one in SIZES):
            nights = sorted(row["delays"][size][tool] or math.inf for row in rows if "delays" in row)
            middle = nights[len(nights) // 2] if nights else math.inf
            never = sum(map(math.isinf, nights)) / max(len(nights), 1)
            delays[size] = {"median": middle if math.isfinite(middle) else None, "never": round(never, 2)}
        calls, looks = (sum(row["raw"][tool][key] for row in rows) / years for key in ("calls", "looks"))
        found[tool] = {"calls_a_series_year": round(calls, 2), "nights_to_look_at_a_series_year": round(looks, 2)}
        found[tool] |= {"delays": delays, "alone": sum(_alone(row["changes"], tool) for row in rows)}
        found[tool]["missed_of_those_that_all_others_report"] = sum(_missed(row["changes"], tool) for row in rows)
    standing = sum(row["raw"]["plumbline"]["standing"] for row in rows) / years
    return found | {"series_years": round(years, 2), "plumbline_standing_nights_a_series_year": round(standing, 2)}


def _near(index: int, places: list[int]) -> bool:
    return any(abs(index - place) <= 5 for place in places)


def _alone(found: dict[str, list[int]], tool: str) -> int:
    others = [places for name, places in found.items() if name != tool]
    return sum(not any(_near(index, places) for places in others) for index in found[tool])


def _missed(found: dict[str, list[int]], tool: str) -> int:
    first, *others = [places for name, places in found.items() if name != tool]
    agreed = [index for index in first if all(_near(index, places) for places in others)]
    return sum(not _near(index, found[tool]) for index in agreed)


def main() -> None:
    """Judge, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--environment", default="py3.7")
    parser.add_argument("--series", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    series = series_of(args.folder, args.environment, args.series)
    with ProcessPoolExecutor(args.processes) as pool:
        rows = list(pool.map(judged, series.items()))
    document = {
        "command": "python -m bench.history.real FOLDER",
        "num_series": len(rows),
        "summary": summed(rows),
        "rows": rows,
    }
    print(json.dumps(document["summary"], indent=1))
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
