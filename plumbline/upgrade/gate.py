"""The gate itself: a training under the current lock against one under the candidate's, bisected when they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plumbline.errors import DiskFullError, InconclusiveError, InvalidInputError
from plumbline.judge import compare, needs_rerun
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement
from plumbline.upgrade.bisect import Bisection, Outcome, bisect
from plumbline.upgrade.locks import PackageChange

__all__ = ["Gate", "Upgrade", "summary"]

_LOOKS = 2
"""How often a trial is trained before an inconclusive one is given up."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What the gate found: the judgement of the whole candidate, and the packages if it drifts."""

    judgement: Judgement
    bisection: Bisection[PackageChange] | None


class Gate:
    """Judges an upgrade by trainings: `train` gives the record of one with just those changes applied.

    It gives `None` where that set of versions cannot train at all.
    """

    def __init__(
        self, train: Callable[[Sequence[PackageChange]], LoadedRecord | None], say: Callable[[str], None]
    ) -> None:
        self._train = train
        self._say = say

    def judge(self, changes: Sequence[PackageChange], gates: Gates) -> Upgrade:
        """Current against candidate; on drift, the smallest set of changes that drifts by itself."""
        runs = [self._needed((), "the current lock"), self._needed((), "the current lock")]
        again = compare(runs[0], runs[1], gates, throughput=False)
        if again.verdict == "drift":
            # A trainer that does not agree with itself says nothing about an upgrade.
            return Upgrade(again, None)
        # Equal otherwise: what the machine gave one of them by luck must not count against the candidate.
        reference = min(runs, key=_samples_per_second)
        judgement = self._held_against(reference, self._needed(changes, "the candidate lock"), changes, gates)
        if judgement.verdict != "drift":
            return Upgrade(judgement, None)
        self._say(f"drift; bisecting {len(changes)} changed packages")
        return Upgrade(judgement, bisect(tuple(changes), lambda subset: self._trial(subset, reference, gates)))

    def _held_against(
        self, reference: LoadedRecord, record: LoadedRecord, changes: Sequence[PackageChange], gates: Gates
    ) -> Judgement:
        """The judgement of one training; a slower one is trained once more before it is called drift."""
        judgement = compare(reference, record, gates)
        if not needs_rerun(judgement):
            return judgement
        again = self._needed(changes, "the same versions again, for it was slower")
        return compare(reference, record, gates, confirms=again.record.evidence.speed)

    def _needed(self, changes: Sequence[PackageChange], what: str) -> LoadedRecord:
        self._say(f"training under {what}")
        record = self._train(changes)
        if record is None:
            raise InconclusiveError(f"the training under {what} did not finish")
        return record

    def _trial(self, subset: tuple[PackageChange, ...], reference: LoadedRecord, gates: Gates) -> Outcome:
        try:
            outcome = self._outcome(subset, reference, gates)
        except DiskFullError:
            raise  # every trial to come would meet it too
        except (InconclusiveError, InvalidInputError) as error:
            # It hung, or left no record that can be read: what the other trials tell stands all the same.
            self._say(str(error))
            outcome = "broken"
        self._say(f"{outcome}: {', '.join(str(change) for change in subset)}")
        return outcome

    def _outcome(self, subset: tuple[PackageChange, ...], reference: LoadedRecord, gates: Gates) -> Outcome:
        """What these changes do to training; `broken` where that cannot be told."""
        for _ in range(_LOOKS):
            record = self._train(subset)
            if record is None:
                break
            match self._held_against(reference, record, subset, gates).verdict:
                case "pass" | "drift" as known:
                    return known
                case "invalid":
                    break  # it would be invalid again
        return "broken"


def _samples_per_second(record: LoadedRecord) -> float:
    measured = record.record.evidence.speed
    return (measured.samples_per_second or 0.0) if measured else 0.0


def summary(upgrade: Upgrade) -> Mapping[str, object]:
    """The gate's result as JSON."""
    found = upgrade.bisection
    packages = (
        None
        if found is None
        else {
            "culprits": [str(change) for change in found.culprits],
            "others_pass": found.complement == "pass",
            "others": found.complement,
            "trials": [
                {"changes": [str(change) for change in subset], "outcome": outcome} for subset, outcome in found.trials
            ],
        }
    )
    return {**upgrade.judgement.to_json(), "bisection": packages}
