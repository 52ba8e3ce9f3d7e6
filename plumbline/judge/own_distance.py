"""Distance of one run's tensors from its own portable leg, which tells rounding from signal.

Without it, 5 of 216 names are lost (ADR 0036): a gradient that is rounding only looks like a second cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import ProbeEvidence, Tap
from plumbline.schema.sketch import reduced, relative_error
from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import is_rounding_only, least_gradient


@dataclass(frozen=True)
class OwnDistances:
    """Relative errors of a run's tensors against its own portable leg, by index of the tap."""

    loaded: LoadedRecord

    def exact(self, index: int) -> float | None:
        """Return the distance from a leg as exact as fp64; `None` if not measured.

        The run measures it beside its envelope. Without an envelope, the leg's own sketches show it.
        """
        return self._exact[index] if 0 <= index < len(self._exact) else None

    @cached_property
    def _exact(self) -> tuple[float | None, ...]:
        probe = self._probe
        if probe is None:
            return ()
        if probe.envelope is not None:
            return tuple(self._recorded(index) for index in range(len(probe.taps)))
        is_exact = probe.portable is not None and probe.portable.slices > 1
        return tuple(self._from_leg(index) for index in range(len(probe.taps))) if is_exact else ()

    def comparable(self, index: int) -> float | None:
        """Return the distance from a leg of any precision: enough to show that a tensor is rounding only."""
        recorded = self._recorded(index)
        return recorded if recorded is not None else self._from_leg(index)

    def tap(self, index: int) -> Tap:
        """Return the tensor's description."""
        assert self._probe is not None  # noqa: S101 - only reached with a probe
        return self._probe.taps[index]

    def share(self, index: int) -> float | None:
        """Return the norm of a gradient relative to the largest gradient of its step; `None` if not finite."""
        tap = self.tap(index)
        largest = self._largest[tap.step]
        return None if tap.norm is None else (tap.norm / largest if largest else 0.0)

    @cached_property
    def _largest(self) -> dict[int, float]:
        """Return the largest norm of a gradient by step."""
        found: dict[int, float] = {}
        for tap in self._probe.taps if self._probe is not None else ():
            if tap.stage == "gradient":
                found[tap.step] = max(found.get(tap.step, 0.0), tap.norm or 0.0)
        return found

    @property
    def _probe(self) -> ProbeEvidence | None:
        return self.loaded.record.evidence.probe

    def _recorded(self, index: int) -> float | None:
        envelope = self._probe.envelope if self._probe is not None else None
        errors = envelope.fp64_errors if envelope is not None else ()
        return errors[index] if 0 <= index < len(errors) else None

    @cached_property
    def _leg(self) -> dict[tuple[int, str], tuple[float, ...]]:
        """Return the leg's sketches up to its first step without outputs, whose products have a single slice."""
        leg = self._probe.portable if self._probe is not None else None
        found: dict[tuple[int, str], tuple[float, ...]] = {}
        for step in leg.steps if leg is not None and not leg.unportable else ():
            if not step.outputs:
                break
            found |= {(step.step, name): numbers for name, numbers in step.sketches}
        return found

    def _from_leg(self, index: int) -> float | None:
        if self._probe is None or "sketch" not in self.loaded.sketches or not 0 <= index < len(self._probe.taps):
            return None
        tap = self._probe.taps[index]
        numbers = self._leg.get((tap.step, f"{tap.stage} {tap.name}"))
        if numbers is None:
            return None
        return relative_error(reduced(self.loaded.sketches["sketch"][index]), np.array(numbers))


def without_signal(
    sides: tuple[OwnDistances, OwnDistances], places: Sequence[tuple[int, int]], precision: Precision
) -> frozenset[tuple[str, str]]:
    """Return (stage, name) of the tensors that are rounding only in both runs; `places` are indices of equal taps.

    Every run is far from its own leg there, at some step and so at every step; experiments have no leg. A gradient that
    no leg shows is rounding only if it is tiny in both runs at every step. Its weight is rounding only too, as AdamW
    divides a gradient by its own size.
    """
    shown: dict[tuple[str, str], bool] = {}
    tiny: dict[str, bool] = {}
    for both in places:
        tap = sides[0].tap(both[0])
        key = (tap.stage, tap.name)
        trained = [(own, place) for own, place in zip(sides, both, strict=True) if own.loaded.record.experiment is None]
        known = [error for own, place in trained if (error := own.comparable(place)) is not None]
        if known and len(known) == len(trained):
            shown[key] = shown.get(key, False) or is_rounding_only(min(known))
        elif tap.stage == "gradient":
            shares = [own.share(place) for own, place in zip(sides, both, strict=True)]
            is_tiny = all(share is not None and share <= least_gradient(precision) for share in shares)
            tiny[tap.name] = tiny.get(tap.name, True) and is_tiny
    guessed = {(stage, name) for name, is_tiny in tiny.items() if is_tiny for stage in ("gradient", "weight")}
    return frozenset({key for key, is_noise in shown.items() if is_noise} | (guessed - shown.keys()))
