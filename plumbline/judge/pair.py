"""Two records under comparison: their logs of steps, and numbers that several checks share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.own_distance import OwnDistances, without_signal
from plumbline.judge.whole import whole
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import BATCH_FIELDS, LearnEvidence, ProbeEvidence, Tap
from plumbline.schema.fact import Statement
from plumbline.schema.sketch import relative_error
from plumbline.schema.spec import PartName, Precision
from plumbline.schema.stage import Stage
from plumbline.schema.step_log import MAX_LOGGED, LoggedStep, StepLog
from plumbline.schema.tolerance import limit, relative


@dataclass(frozen=True, slots=True)
class TapError:
    """Relative error of one tensor between two runs, with its rounding limit."""

    reference: Tap
    candidate: Tap
    error: float
    limit: float
    places: tuple[int, int] = (0, 0)
    """Index of the tap in each record."""

    @property
    def over(self) -> bool:
        """Return whether the error exceeds rounding; a non-finite error always does."""
        return not (math.isfinite(self.error) and self.error <= self.limit)

    @property
    def ratio(self) -> float:
        """Return the error in units of its limit; infinite if not finite."""
        if not math.isfinite(self.error):
            return math.inf
        return self.error / self.limit if self.limit else 0.0

    @property
    def numbers(self) -> dict[str, float]:
        """Return the fields of a finding on this tensor."""
        return {"observed": self.error, "limit": self.limit}


@dataclass(frozen=True)
class Pair:
    """Reference and candidate records; `steps` limits the comparison to the first steps."""

    reference: LoadedRecord
    candidate: LoadedRecord
    steps: int | None = None
    imposed: frozenset[str] = field(default_factory=frozenset)
    """Rungs that an experiment imposed: equal by construction, and so no evidence."""
    rounding: tuple[Statement, ...] = ()
    """Reasons for different rounding beyond the fingerprints, such as a value imposed by its definition."""
    noise: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """(stage, name) of tensors that an earlier comparison of the same two sides showed to be rounding only."""
    scale: float = 1.0
    """Factor of every limit; below 1 for two fp64 runs, whose rounding is far smaller than the spec's precision's, and
    infinite where kernels round differently: only numbers that are not finite count there."""

    @property
    def sides(self) -> tuple[tuple[str, LoadedRecord], ...]:
        """Return both records with their roles."""
        return ("reference", self.reference), ("candidate", self.candidate)

    @property
    def probes(self) -> tuple[ProbeEvidence, ProbeEvidence] | None:
        """Return both probe runs, or `None` if a record has none."""
        left, right = self.reference.record.evidence.probe, self.candidate.record.evidence.probe
        return (left, right) if left is not None and right is not None else None

    def logs(self, part: PartName) -> tuple[StepLog, StepLog] | None:
        """Return both logs of a part, or `None` if a record has none."""
        left, right = log_of(self.reference, part), log_of(self.candidate, part)
        return (left, right) if left is not None and right is not None else None

    def at(self, part: PartName, step: int) -> tuple[LoggedStep, LoggedStep]:
        """Return one step of a part that both runs have."""
        if part == "probe":
            return self.common[step]
        if part not in self._logged:
            left, right = (log.steps_of(MAX_LOGGED) for log in self.logs(part) or (StepLog(), StepLog()))
            self._logged[part] = tuple(zip(left, right, strict=False))
        return self._logged[part][step]

    @cached_property
    def _logged(self) -> dict[PartName, tuple[tuple[LoggedStep, LoggedStep], ...]]:
        """Return the steps of logs that were asked for, so that a long log is read once."""
        return {}

    @property
    def precision(self) -> Precision:
        """Return the probe's precision in the spec."""
        return self.reference.record.spec.precision_of("probe")

    @cached_property
    def common(self) -> tuple[tuple[LoggedStep, LoggedStep], ...]:
        """Return the probe's steps that both runs have, in pairs."""
        left, right = self.probes or (None, None)
        if left is None or right is None:
            return ()
        return tuple(zip(left.steps_of(self.steps), right.steps_of(self.steps), strict=False))

    @cached_property
    def _places(self) -> dict[tuple[int, str, str], int]:
        return _places_of(self.probes[1] if self.probes else None)

    @cached_property
    def _finite(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return masks of the finite tensor sketches of each record."""
        sides = (self.reference.sketches, self.candidate.sketches)
        left, right = (np.isfinite(side.get("sketch", np.zeros((0, 1)))).all(axis=1) for side in sides)
        return np.atleast_1d(left), np.atleast_1d(right)

    @cached_property
    def tap_steps(self) -> frozenset[int]:
        """Return the steps with tensor sketches in both runs."""
        if self.probes is None:
            return frozenset()
        left, right = ({tap.step for tap in probe.taps} for probe in self.probes)
        return frozenset(left & right)

    @cached_property
    def _errors(self) -> dict[tuple[int, str], tuple[TapError, ...]]:
        grouped: dict[tuple[int, str], list[TapError]] = {}
        taps = enumerate(self.probes[0].taps if self.probes else ())
        for index, tap in sorted(taps, key=lambda item: item[1].step):
            other = self._places.get((tap.step, tap.stage, tap.name))
            if other is None:
                continue
            grouped.setdefault((tap.step, tap.stage), []).append(self._error(index, other))
        return {key: tuple(errors) for key, errors in grouped.items()}

    def errors(self, step: int, stage: Stage) -> tuple[TapError, ...]:
        """Return the error of each tensor sketched in both runs."""
        return self._errors.get((step, stage), ())

    def _error(self, left: int, right: int) -> TapError:
        """Return the relative error of one tensor between both runs."""
        assert self.probes is not None  # noqa: S101 - only reached with both
        left_tap, right_tap = self.probes[0].taps[left], self.probes[1].taps[right]
        same = left_tap.sha256 == right_tap.sha256 and self._is_finite(0, left) == self._is_finite(1, right)
        error = 0.0 if same else self._distance(left, right)
        return TapError(
            reference=left_tap,
            candidate=right_tap,
            error=error,
            limit=self._limit(left_tap),
            places=(left, right),
        )

    def _is_finite(self, side: int, index: int) -> bool:
        """Return whether a tensor's norm and sketch are finite."""
        tap, finite = (self.probes or ())[side].taps[index], self._finite[side]
        return tap.norm is not None and (index >= len(finite) or bool(finite[index]))

    def sketch(self, side: int, index: int) -> NDArray[np.float64] | None:
        """Return one tensor's sketch of the reference (0) or candidate (1)."""
        arrays = (self.reference, self.candidate)[side].sketches
        return arrays["sketch"][index] if "sketch" in arrays else None

    def _distance(self, left: int, right: int) -> float:
        assert self.probes is not None  # noqa: S101 - only reached with both
        left_tap, right_tap = self.probes[0].taps[left], self.probes[1].taps[right]
        if left_tap.norm is None or right_tap.norm is None or left_tap.shape != right_tap.shape:
            return math.inf
        a, b = self.sketch(0, left), self.sketch(1, right)
        if a is None or b is None:
            return math.inf
        error = relative_error(a, b, left_tap.norm)
        # Equal sketches of different bytes: the norms may differ.
        return math.inf if error is None else error or relative(left_tap.norm, right_tap.norm)

    def _limit(self, tap: Tap) -> float:
        if (tap.stage, tap.name) in self.noise | self._without_signal:
            return math.inf
        return self.scale * limit(tap.stage, self.precision, tap.step)

    @cached_property
    def _own(self) -> tuple[OwnDistances, OwnDistances]:
        return whole(self.reference).own, whole(self.candidate).own

    @cached_property
    def _without_signal(self) -> frozenset[tuple[str, str]]:
        """Return the tensors that contain only rounding, by each side's own windows."""
        taps = self.probes[0].taps if self.probes else ()
        matched = ((left, self._places.get((tap.step, tap.stage, tap.name))) for left, tap in enumerate(taps))
        return without_signal(
            self._own, [(left, right) for left, right in matched if right is not None], self.precision
        )

    @property
    def rounding_only(self) -> frozenset[tuple[str, str]]:
        """Return the tensors that contain only rounding, and are not limited."""
        taps = (tap for errors in self._errors.values() for tap in errors)
        return frozenset((tap.reference.stage, tap.reference.name) for tap in taps if math.isinf(tap.limit))

    def loss_limit(self, step: int) -> float:
        """Return the maximum rounding error of the loss at `step`."""
        return self.scale * limit("loss", self.precision, step)

    def norm_limit(self, step: int) -> float:
        """Return the maximum rounding error of a gradient's norm at `step`."""
        return self.scale * limit("norm", self.precision, step)


def _places_of(probe: ProbeEvidence | None) -> dict[tuple[int, str, str], int]:
    return {(tap.step, tap.stage, tap.name): index for index, tap in enumerate(probe.taps if probe else ())}


def log_of(side: LoadedRecord, part: PartName) -> StepLog | None:
    """Return what a part logged; `None` without it, or of a curve without its end."""
    log: StepLog | None = getattr(side.record.evidence, part)
    is_whole = not isinstance(log, LearnEvidence) or log.last_weights is not None
    return log if log is not None and log.losses and is_whole else None


def apart(left: StepLog, right: StepLog, *names: str) -> Iterator[int]:
    """Yield the steps at which a named column differs, as far as both logs have it; `batches` has a column a field.

    A missing loss equals nothing.
    """
    ours, theirs = (_columns(log, names) for log in (left, right))
    if "losses" in ours:
        ours["losses"] = [math.nan if loss is None else loss for loss in ours["losses"]]
    return merge(*(_differing(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()))


def first_step_apart(left: StepLog, right: StepLog) -> int | None:
    """Return the first step with a different batch, learning rate or loss."""
    return next(apart(left, right, "num_rows", "batches", "learning_rates", "losses"), None)


def _differing(ours: Sequence[object], theirs: Sequence[object]) -> Iterator[int]:
    """Yield the places at which two series differ."""
    return (place for place, (left, right) in enumerate(zip(ours, theirs, strict=False)) if left != right)


def first_apart(ours: Mapping[int, object], theirs: Mapping[int, object]) -> int | None:
    """Return the first common number of done steps with different checksums."""
    return next((done for done in sorted(ours.keys() & theirs.keys()) if ours[done] != theirs[done]), None)


def _columns(log: StepLog, names: Sequence[str]) -> dict[str, Sequence[object]]:
    columns = {name: getattr(log, name) for name in names}
    batches = columns.pop("batches", {})
    return columns | {name: batches[name] for name in BATCH_FIELDS if name in batches}
