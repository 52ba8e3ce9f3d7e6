"""What a number did over the nights: change points, and a creep that no single night shows."""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.judge.changepoint import Change, changes
from plumbline.judge.cusum import Creep, creep
from plumbline.schema.base import Model
from plumbline.schema.verdict import RoundVerdict

__all__ = ["Night", "Trend", "nights", "trend"]


class Night(Model):
    """One platform in one round."""

    round: str
    platform: str
    verdict: str
    causes: tuple[str, ...] = ()
    accuracy: float | None = None
    samples_per_second: float | None = None
    records: tuple[str, ...] = ()


class Trend(Model):
    """What the nights' numbers add up to; empty where they only vary."""

    changes: tuple[str, ...] = ()
    creep: str = ""


def nights(rounds: Sequence[RoundVerdict], platform: str) -> tuple[Night, ...]:
    """The rounds of one platform, in the order given."""
    return tuple(
        Night(
            round=one.round,
            platform=platform,
            verdict=one.platforms[platform].verdict,
            causes=tuple(cause.code for cause in one.platforms[platform].causes),
            accuracy=one.platforms[platform].accuracy,
            samples_per_second=one.platforms[platform].samples_per_second,
            records=one.platforms[platform].records,
        )
        for one in rounds
        if platform in one.platforms
    )


def trend(platform_nights: Sequence[Night]) -> Trend:
    """Change points and creep of the throughput, in words that name the round."""
    known = [(one.round, one.samples_per_second) for one in platform_nights if one.samples_per_second is not None]
    rounds, values = [name for name, _ in known], [value for _, value in known]
    crept = creep(values)
    return Trend(
        changes=tuple(_change(rounds, one) for one in changes(values)),
        creep=_creep(rounds, crept) if crept else "",
    )


def _change(rounds: list[str], one: Change) -> str:
    size = one.after / one.before - 1 if one.before else 0.0
    return (
        f"since {rounds[one.index]}: {one.before:.4g} → {one.after:.4g} samples/s ({size:+.1%}, p = {one.p_value:.3f})"
    )


def _creep(rounds: list[str], one: Creep) -> str:
    way = "faster" if one.direction > 0 else "slower"
    height = f"CUSUM {one.height:.1f} over {one.threshold:.1f}"
    return f"creeps {way} since {rounds[one.since]} ({height} at {rounds[one.index]})"
