"""Judge the same years and open losses with one rule of the decision engine left out at a time.

Years: four platforms of ten metrics of unchanged software, whose reruns share 0.7 of their night. Open losses: as in
`open_losses.py`. Delays: nights until an A/B calls a loss after twenty nights of history. Raw results:
`bench/results/history-ablation.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from bench.history.open_losses import judged, summed
from bench.history.simulate import PLATFORMS, delay, year
from plumbline import limits
from plumbline.history import detectors, lasting, reference, series_state
from plumbline.history.paired import PairedTest, exact_chance

OUT = Path(__file__).resolve().parents[1] / "results" / "history-ablation.json"
NOISES = ("gaussian", "t3", "ar-0.6", "outliers")
Patch = tuple[ModuleType | type, str, Any]


def _nothing(*_: object, **__: object) -> None:
    return None


def _no_detection(*_: object) -> tuple[()]:
    return ()


def _whole_size(size: float, *rest: Any) -> bool:
    return bool(lasting.is_ruled_out(2 * size, *rest))


def _own_spread(self: reference.Reference, _: object) -> reference.Reference:
    return self


def _by_half_a_chance(self: PairedTest, loss: float, _: float) -> bool:
    return exact_chance(self.theirs + loss, self.ours) <= 0.5


def _by_seven_nights(here: Any, num_fresh: int, *rest: Any) -> lasting.Lasting:
    return lasting.overdue_loss(here, min(num_fresh, limits.LAG_NIGHTS), *rest)


RULES: Mapping[str, tuple[Patch, ...]] = {
    "as it is": (),
    "sudden": ((detectors, "_sudden", _no_detection),),
    "creep": ((detectors, "_creep", _no_detection),),
    "limit": ((detectors, "_limit", _no_detection),),
    "the nights before a creep are the reference": ((series_state, "_before_creep", _nothing),),
    "the autocorrelation within a creep's parts": ((detectors, "autocorrelation_within", lambda *_: 1.0),),
    "the newest seven nights stay out of a growing reference": ((limits, "LAG_NIGHTS", 0),),
    "the first eight nights do not": ((limits, "FIRST_NIGHTS", limits.LEAST_NIGHTS),),
    "a night counts three SD at most": ((limits, "WINSOR", 1e9),),
    "the spread of the nights after a question counts": ((reference.Reference, "pooled", _own_spread),),
    "ruled out at 0.1% (1%)": ((limits, "RULED_OUT", 0.01),),
    "half of the loss is ruled out (all of it)": ((series_state, "is_ruled_out", _whole_size),),
    "an open loss gets an A/B on every night": ((series_state, "_can_be_answered", _nothing),),
    "up to four times the blocks (once)": ((limits, "MOST_BLOCKS", 1),),
    "half of the loss is excluded before the software is cleared": ((PairedTest, "rules_out", _by_half_a_chance),),
    "a loss that lasts is shown by ranks, too": ((lasting, "rank_sum_chance", lambda *_: 0.0),),
    "an overdue loss is shown by up to twenty nights (seven)": ((series_state, "overdue_loss", _by_seven_nights),),
}  # fmt: skip


@contextmanager
def left_out(patches: tuple[Patch, ...]) -> Iterator[None]:
    """Replace each name of a module while the block runs."""
    before = [(module, name, getattr(module, name)) for module, name, _ in patches]
    for module, name, value in patches:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def measured(num_years: int, num_series: int) -> dict[str, Any]:
    """Return a year's false drifts, looks and reruns by noise, the open losses, and the median delays."""
    row: dict[str, Any] = {}
    for noise in NOISES:
        runs = [year((noise, 0.7, number)) for number in range(num_years * PLATFORMS)]
        row[noise] = {name: sum(int(run[name]) for run in runs) / num_years for name in ("calls", "looks", "reruns")}
    for road, size, history in (("ab", 0.02, 8), ("unavailable", 0.02, 8), ("unavailable", 0.03, 20)):
        found = summed([judged((road, size, history, seed)) for seed in range(num_series)])
        row[f"{road}, {size:.0%}, {history} nights"] = {name: found[name] for name in _SHOWN}
    medians: dict[str, Callable[[int], float]] = {
        loss: lambda trial, loss=loss: delay((loss, True, 20, trial))
        for loss in ("step 5%", "step 2%", "creep 0.2% a night")
    }
    return row | {loss: median(map(nights, range(num_series))) for loss, nights in medians.items()}


_SHOWN = ("never_asked_about", "series_with_a_silent_pass_after_it", "median_night_of_the_call", "never_called")


def main() -> None:
    """Leave out each rule, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=2)
    parser.add_argument("--series", type=int, default=60)
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else {}
    for rule in args.rules:
        with left_out(RULES[rule]):
            rows[rule] = measured(args.years, args.series)
        print(rule, json.dumps(rows[rule]), flush=True)
        document = {"command": "python -m bench.history.ablation", "years": args.years, "series": args.series}
        args.out.write_text(json.dumps({**document, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
