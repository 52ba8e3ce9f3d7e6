"""Distance of a run's tensors from its own windows, to measure rounding.

Without it, 5 of 216 names are lost (ADR 0036): a gradient that is rounding only looks like a second cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import ProbeEvidence, Tap
from plumbline.schema.portable_parts import first_steps
from plumbline.schema.sketch import reduced, relative_error
from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import is_rounding_only, least_gradient


@dataclass(frozen=True)
class OwnDistances:
    """Relative errors of a run's tensors against its own windows."""

    loaded: LoadedRecord

    def tap(self, index: int) -> Tap:
        """Return the description of one recorded tensor."""
        assert self._probe is not None  # noqa: S101 - only reached with a probe
        return self._probe.taps[index]

    def share(self, index: int) -> float | None:
        """Return a gradient's norm relative to the largest of its step."""
        tap = self.tap(index)
        largest = self._largest[tap.step]
        return None if tap.norm is None else (tap.norm / largest if largest else 0.0)

    @cached_property
    def _largest(self) -> dict[int, float]:
        """Return the largest gradient norm of each step."""
        found: dict[int, float] = {}
        for tap in self._probe.taps if self._probe is not None else ():
            if tap.stage == "gradient":
                found[tap.step] = max(found.get(tap.step, 0.0), tap.norm or 0.0)
        return found

    @property
    def _probe(self) -> ProbeEvidence | None:
        return self.loaded.record.evidence.probe

    @cached_property
    def _portable(self) -> dict[tuple[int, str], tuple[float, ...]]:
        """Return the tensor sketches of the windows that follow each other from the start, as the training's steps."""
        portable = self._probe.portable if self._probe is not None else None
        windows = () if portable is None else portable.windows[: first_steps(portable)]
        return {(window.step, name): numbers for window in windows for name, numbers in window.sketches}

    def distance(self, index: int) -> float | None:
        """Return a tensor's distance from the windows, or `None`."""
        if self._probe is None or "sketch" not in self.loaded.sketches or not 0 <= index < len(self._probe.taps):
            return None
        tap = self._probe.taps[index]
        numbers = self._portable.get((tap.step, f"{tap.stage} {tap.name}"))
        if numbers is None:
            return None
        return relative_error(reduced(self.loaded.sketches["sketch"][index]), np.array(numbers))


def without_signal(
    sides: tuple[OwnDistances, OwnDistances], places: Sequence[tuple[int, int]], precision: Precision
) -> frozenset[tuple[str, str]]:
    """Return (stage, name) of tensors with nothing but rounding in both runs.

    Every run is far from its own windows there, at some step and so at every step; experiments have none. A
    gradient that no rerun shows is rounding only if it is tiny in both runs at every step. Its weight is rounding only
    too, as AdamW divides a gradient by its own size.
    """
    shown: dict[tuple[str, str], bool] = {}
    tiny: dict[str, bool] = {}
    for both in places:
        tap = sides[0].tap(both[0])
        key = (tap.stage, tap.name)
        trained = [(own, place) for own, place in zip(sides, both, strict=True) if own.loaded.record.experiment is None]
        known = [error for own, place in trained if (error := own.distance(place)) is not None]
        if known and len(known) == len(trained):
            shown[key] = shown.get(key, False) or is_rounding_only(min(known))
        elif tap.stage == "gradient":
            shares = [own.share(place) for own, place in zip(sides, both, strict=True)]
            is_tiny = all(share is not None and share <= least_gradient(precision) for share in shares)
            tiny[tap.name] = tiny.get(tap.name, True) and is_tiny
    guessed = {(stage, name) for name, is_tiny in tiny.items() if is_tiny for stage in ("gradient", "optimizer")}
    return frozenset({key for key, is_noise in shown.items() if is_noise} | (guessed - shown.keys()))
