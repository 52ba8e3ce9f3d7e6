"""Years of nights with noise, losses and experiments, judged by the decision engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed, Margin
from plumbline.judge.history.decision import Answers, Decision, Past, Software, advance
from plumbline.judge.history.engine import decide

Values = NDArray[np.float64]

SD = 0.01
"""Of one night, relative."""
_RERUN_SHARE = 0.3
"""SD of a rerun about its night's level, in SD of a night, if runs share their night."""


def _ar(generator: np.random.Generator, shape: tuple[int, int], rho: float) -> Values:
    noise = generator.normal(size=shape)
    values = np.empty(shape)
    values[:, 0] = noise[:, 0]
    for night in range(1, shape[1]):
        values[:, night] = rho * values[:, night - 1] + math.sqrt(1 - rho**2) * noise[:, night]
    return values


def _classes(generator: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Return nights of two machine classes, of which 30% are slower by 4 SD."""
    slower = generator.random(shape) < 0.3
    return np.asarray((generator.normal(size=shape) + 4 * slower) / math.sqrt(1 + 16 * 0.21))


def _weekdays(generator: np.random.Generator, shape: tuple[int, int]) -> Values:
    weekend = (np.arange(shape[1]) % 7 >= 5).astype(np.float64)
    return np.asarray((generator.normal(size=shape) + 1.5 * weekend) / math.sqrt(1 + 2.25 * 10 / 49))


def _outliers(generator: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Return nights with 2% outliers of 5 to 15 SD."""
    odd = generator.random(shape) < 0.02
    return np.asarray(generator.normal(size=shape) + odd * generator.uniform(5, 15, size=shape))


def _season(generator: np.random.Generator, num_nights: int) -> Values:
    """Return a season of one SD, a quarter of a year long."""
    return np.asarray(np.sin(generator.uniform(0, 2 * math.pi) + 2 * np.pi * np.arange(num_nights) / 91))


def _slow_node(generator: np.random.Generator, num_nights: int) -> Values:
    """Return a node that is slower by 3 SD for 20 nights in about every 60."""
    starts = generator.integers(0, 40, size=num_nights // 60 + 1) + 60 * np.arange(num_nights // 60 + 1)
    days = np.arange(num_nights)[:, None]
    return np.asarray(3.0 * ((days >= starts) & (days < starts + 20)).any(axis=1))


def _locks(generator: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Return nights of a deterministic metric, which moves once with each new lock, every 40 nights."""
    locks = np.cumsum(generator.random(shape) < 1 / 40, axis=1, dtype=np.intp)
    ends = generator.uniform(-math.sqrt(3), math.sqrt(3), size=(shape[0], shape[1] + 1))
    return np.asarray(np.take_along_axis(ends, locks, axis=1))


NOISES: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], Values]] = {
    "gaussian": lambda generator, shape: generator.normal(size=shape),
    "t3": lambda generator, shape: generator.standard_t(3, size=shape) / math.sqrt(3),
    "lognormal": lambda generator, shape: (np.exp(0.8 * generator.normal(size=shape)) - math.exp(0.32)) / 1.303,
    "ar-0.3": lambda generator, shape: _ar(generator, shape, 0.3),
    "ar-0.6": lambda generator, shape: _ar(generator, shape, 0.6),
    "two-classes": _classes,
    "weekdays": _weekdays,
    "outliers": _outliers,
}
"""Standardised noise models [series, nights], higher is worse."""
MACHINES: Mapping[str, Callable[[np.random.Generator, int], Values]] = {"season": _season, "slow-node": _slow_node}
"""What the machine adds to Gaussian nights [nights], in SD: all series and all runs of a night share it."""
DETERMINISTIC = "within-locks"
"""Noise of a metric that reruns repeat to the bit, and that no A/B measures, as the accuracy."""
LOCK_MARGIN = 2 * math.sqrt(3) * SD
"""Margin that holds all ends of the deterministic metric."""
MODELS = (*NOISES, *MACHINES, DETERMINISTIC)


def make_levels(generator: np.random.Generator, noise: str, num_series: int, num_nights: int) -> Values:
    """Return nights of unchanged software, [series, nights], with an SD of 1%."""
    model = _locks if noise == DETERMINISTIC else NOISES[_own_noise(noise)]
    return SD * model(generator, (num_series, num_nights))


def make_machine(generator: np.random.Generator, noise: str, num_nights: int) -> Values:
    """Return what the machine adds to each night, [nights]."""
    return SD * MACHINES[noise](generator, num_nights) if noise in MACHINES else np.zeros(num_nights)


def _own_noise(noise: str) -> str:
    return "gaussian" if noise in MACHINES else noise


@dataclass(frozen=True, slots=True)
class World:
    """Source of simulated reruns and A/B runs.

    A run is noise plus the software's loss. `share` is the share of a night's level in its reruns: 1 on a machine that
    is slow all night, 0 for fresh draws.
    """

    noise: str
    levels: Values
    losses: Values
    """[nights]: of tonight's software against the baseline's."""
    share: float
    generator: np.random.Generator
    has_ab: bool = True
    machine: Values | float = 0.0
    """[nights]: what all runs of a night share."""

    @property
    def seen(self) -> Values:
        """Return the nights as the series has them, [series, nights]."""
        return np.asarray(self.levels + self.losses + self.machine)

    def shared(self, series: int, night: int) -> float:
        """Return what all runs of a night share."""
        share = 1.0 if self.noise == DETERMINISTIC else self.share
        machine = float(np.broadcast_to(self.machine, self.losses.shape)[night])
        return share * float(self.levels[series, night]) + machine

    def draw(self, shape: tuple[int, int]) -> Values:
        """Return single runs relative to their night's level."""
        if self.noise == DETERMINISTIC:
            return np.zeros(shape)
        if self.share == 1:
            return _RERUN_SHARE * SD * self.generator.normal(size=shape)
        noise = "gaussian" if self.noise.startswith("ar") else _own_noise(self.noise)
        return math.sqrt(1 - self.share**2) * SD * NOISES[noise](self.generator, shape)

    def reruns(self, series: int, night: int, count: int) -> tuple[float, ...]:
        """Return `count` fresh runs of tonight's software."""
        return tuple((self.shared(series, night) + self.losses[night] + self.draw((1, count))[0]).tolist())

    def limits(self, allowed: Allowed) -> Allowed:
        """Return the limits of these series."""
        return replace(allowed, margin=Margin(LOCK_MARGIN)) if self.noise == DETERMINISTIC else allowed

    @property
    def software(self) -> Software:
        """Return whether an A/B can answer."""
        return "can-differ" if self.has_ab and self.noise != DETERMINISTIC else "unavailable"

    def experiment(self, series: int, night: int, blocks: int) -> tuple[Values, Values]:
        """Return an interleaved A/B on tonight's machine."""
        runs = self.shared(series, night) + self.draw((blocks, 4))
        return runs[:, :2] + self.losses[night], runs[:, 2:]


@dataclass
class Tally:
    """Totals of a simulated platform."""

    calls: list[tuple[int, int, Decision]] = field(default_factory=list)
    """(series, night, decision) of every new call."""
    asked: int = 0
    """Nights and series in which a detector reported a loss."""
    reruns: int = 0
    """Nights on which the platform ran reruns."""
    experiments: int = 0
    inconclusive: int = 0
    looks: int = 0
    """Nights of the platform that do not pass: a person must look."""
    nights: int = 0
    red: list[tuple[int, int]] = field(default_factory=list)
    """(series, night) of every night with the verdict `drift`."""


def simulate_platform(world: World, allowed: Allowed, *, begin: int = 0) -> Tally:
    """Run the engine over all nights from `begin`.

    All series share the night's reruns and its A/B.
    """
    num_series, num_nights = world.levels.shape
    seen, tally, allowed = world.seen, Tally(), world.limits(allowed)
    known = [Past(seen[series, :begin]) for series in range(num_series)]
    # The first series is the throughput.
    limits = [allowed.of("throughput" if not series else "") for series in range(num_series)]
    for night in range(begin, num_nights):
        final = _decide_all(world, limits, [*zip(known, seen[:, night].tolist(), strict=True)], night, tally)
        tally.looks += any(decision.verdict != "pass" and decision.reason != "learning" for decision in final)
        for series, decision in enumerate(final):
            known[series] = advance(known[series], float(seen[series, night]), decision)
            tally.inconclusive += decision.verdict == "inconclusive" and decision.reason != "learning"
            if decision.verdict == "drift":
                tally.red.append((series, night))
            if decision.new and decision.verdict == "drift":
                tally.calls.append((series, night, decision))
        tally.nights += 1
    return tally


def _decide_all(
    world: World, limits: Sequence[Allowed], nights: Sequence[tuple[Past, float]], night: int, tally: Tally
) -> list[Decision]:
    """Decide on all series of a night, with the experiments that the decisions request."""

    def decided(series: int, answers: Answers | None = None) -> Decision:
        past, value = nights[series]
        return decide(past, value, limits[series], answers or Answers(), software=world.software)

    final = [decided(series) for series in range(len(nights))]
    wanting = [series for series, decision in enumerate(final) if decision.needs == "reruns"]
    tally.asked += len(wanting)
    tally.reruns += bool(wanting)
    reruns = {series: world.reruns(series, night, limits[series].num_reruns) for series in wanting}
    for series in wanting:
        final[series] = decided(series, Answers(reruns=reruns[series]))
    wanting = [series for series in wanting if final[series].needs == "ab"]
    tally.experiments += bool(wanting)
    num_blocks = max((limits[each].ab_blocks(len(wanting), final[each].noise) for each in wanting), default=0)
    for series in wanting:
        runs = world.experiment(series, night, num_blocks)
        final[series] = decided(series, Answers(reruns[series], *runs, len(wanting)))
    return final


def first_call(tally: Tally) -> int | None:
    """Return the night of the first call; `None` without one."""
    return min((night for _, night, _ in tally.calls), default=None)
