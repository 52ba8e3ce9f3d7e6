"""Stories of single series that the simulation keeps: fixes, second losses, undone gains, new platforms.

Each story is a list of (nights, loss) after nights without a loss; SD 1% a night, reruns share 0.7 of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.history.simulated_nights import World, make_levels, simulate_platform
from plumbline.judge.history.allowed import Allowed, allowed_for
from plumbline.judge.history.metrics import Metric
from plumbline.judge.history.segments import MetricHistory
from plumbline.report.summary import summarise
from plumbline.schema.suite import Gates

HISTORY = 60
SHARE = 0.7
ROADS = ("A/B", "no A/B", "file")
DAY = 86400.0
OF_FILE = allowed_for(num_platforms=1, num_series=40, gates=Gates(questions_a_year=12.0), has_experiments=False)


@dataclass(frozen=True, slots=True)
class Story:
    """One story: what is asked of it, its nights, and the roads by which it is judged."""

    asks: str
    """`red`: drift nights after the last part began. `call`: nights until that part is called."""
    history: int
    parts: tuple[tuple[int, float], ...]
    roads: tuple[str, ...] = ROADS[:2]

    @property
    def begin(self) -> int:
        """Return the first night of the last part."""
        return self.history + sum(nights for nights, _ in self.parts[:-1])

    @property
    def losses(self) -> np.ndarray:
        """Return the software's loss on each night."""
        parts = [np.zeros(self.history), *(np.full(nights, -math.log1p(-loss)) for nights, loss in self.parts)]
        return np.concatenate(parts)


def _stories() -> dict[str, Story]:
    stories: dict[str, Story] = {}
    for size in (0.03, 0.05, 0.10, 0.20):
        for nights in (20, 60):
            stories[f"fix of {size:.0%} after {nights} nights"] = Story("red", HISTORY, ((nights, size), (60, 0.0)))
    for first, second in ((0.03, 0.08), (0.05, 0.55), (0.05, 0.08)):
        name = f"second loss, {first:.0%} then {second:.0%}"
        stories[name] = Story("call", HISTORY, ((20, first), (40, second)))
        alone = 1 - (1 - second) / (1 - first)
        stories[f"first loss as large as of {first:.0%} then {second:.0%}"] = Story("call", HISTORY, ((40, alone),))
    for size in (0.02, 0.03, 0.05):
        for nights in (20, 60):
            parts = ((nights, -size), (40, 0.0))
            stories[f"undone gain of {size:.0%} after {nights} nights"] = Story("call", 40, parts, ROADS)
    for nights in (5, 8, 20):
        for size in (0.03, 0.05, 0.20):
            stories[f"{size:.0%} after {nights} nights of a new platform"] = Story("call", nights, ((60, size),))
    return stories


STORIES: Mapping[str, Story] = _stories()


def tell(name: str, road: str, trial: int, allowed: Allowed) -> float:
    """Return the nights that the story asks for; infinite for a loss that is not called."""
    story = STORIES[name]
    key = (5, list(STORIES).index(name), ROADS.index(road), trial)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
    losses = story.losses
    levels = make_levels(generator, "gaussian", 1, len(losses))
    if road == "file":
        return _of_file(levels[0] + losses, story)
    world = World("gaussian", levels, losses, SHARE, generator, has_ab=road == "A/B")
    tally = simulate_platform(world, allowed)
    if story.asks == "red":
        if not any(night < story.begin for _, night, _ in tally.calls):
            return math.nan
        return float(sum(night >= story.begin for _, night in tally.red))
    return min((night - story.begin + 1 for _, night, _ in tally.calls if night >= story.begin), default=math.inf)


def _of_file(scores: np.ndarray, story: Story) -> float:
    """Return 1 if the file's last night is drift, with the loss in its list; else infinity."""
    summary = summarise(line_of_scores(scores), OF_FILE, is_judged=False)
    dates = [round(float(change.round)) for change in summary.changes if change.worse]
    is_listed = any(abs(date - story.begin) <= 5 for date in dates)
    return 1.0 if summary.verdict == "drift" and is_listed else math.inf


def line_of_scores(scores: np.ndarray) -> MetricHistory:
    """Return the history of a file with these scores."""
    names = tuple(str(night) for night in range(len(scores)))
    times = tuple(DAY * night for night in range(len(scores)))
    values = tuple((100 * np.exp(-scores)).tolist())
    return MetricHistory("file", "bert", Metric("speed", "", "lower"), times, names, names, values, ())


def summary_of(name: str, road: str, nights: Sequence[float]) -> dict[str, object]:
    """Return the kept row of a story by one road."""
    told = sorted(number for number in nights if not math.isnan(number))
    row: dict[str, object] = {"story": name, "road": road, "asks": STORIES[name].asks, "series": len(told)}
    for what, share in (("median_nights", 0.5), ("ninth_decile", 0.9)):
        number = told[int(share * len(told))]
        row[what] = number if math.isfinite(number) else None
    return row | {"never": sum(map(math.isinf, told)) / len(told), "of": len(nights)}
