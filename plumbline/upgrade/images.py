"""Trainings that compare a candidate image with a platform's own image.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from plumbline.night.rounds.gathered import Absence
from plumbline.night.rounds.plan import RERUN, Assignment
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement
from plumbline.upgrade.comparison import LEAST_PAIRS, MOST_PAIRS, PairedDrop, compare_training, paired_drop

Side = Literal["own", "candidate"]
_OWN: Side = "own"
_CANDIDATE: Side = "candidate"


@dataclass(frozen=True)
class ImageTrainings:
    """Finished trainings of one platform in both images."""

    platform: str
    workload: str
    image: str
    gates: Gates
    has_numerics: bool
    has_speed: bool
    records: Mapping[Assignment, LoadedRecord] = field(default_factory=dict)
    absent: Mapping[Assignment, Absence] = field(default_factory=dict)

    def pairs(self) -> tuple[Assignment, ...]:
        """Return the training pairs so far, plus the next if undecided. The order alternates from pair to pair.

        The trainings of the whole recipe are the first pair.
        """
        sides = [((_CANDIDATE, _OWN) if number % 2 else (_OWN, _CANDIDATE)) for number in range(MOST_PAIRS)]
        pairs = [[self.training(side, str(number)) for side in sides[number]] for number in range(1, MOST_PAIRS)]
        ended = [pair for pair in pairs if all(each in self.records or each in self.absent for each in pair)]
        drop = self.drop()
        is_lost = any(each not in self.records or is_failed(self.records[each]) for pair in ended for each in pair)
        if not is_lost and (drop is None or drop.outcome == "undecided"):
            ended = pairs[: len(ended) + LEAST_PAIRS if ended else LEAST_PAIRS - 1]
        return tuple(each for pair in ended for each in pair)

    def training(self, side: Side, kind: str = "") -> Assignment:
        """Return a training in one image: full, repeated or throughput."""
        what, title = f"image-{side}", f"{side} image"
        if kind.isdecimal():
            what, title = f"{RERUN}-{side}-{kind}", f"{title}, speed {kind}"
        elif kind:
            what, title = f"{what}-{kind}", f"{title}, {kind}"
        image = self.image if side == _CANDIDATE else ""
        return Assignment(self.platform, self.workload, what, title=title, image=image)

    def record(self, side: Side, *, again: bool = False) -> LoadedRecord | None:
        """Return the full training's record in one image.

        `again` selects its repeat; `None` if there is no record.
        """
        return self.records.get(self.training(side, "again" if again else ""))

    def numerics(self, record: LoadedRecord) -> Judgement | None:
        """Judge a record against the platform's own image's record.

        `None` if the recipe measures only throughput.
        """
        if not self.has_numerics:
            return None
        return compare_training(self.records[self.training(_OWN)], record, self.gates)

    def drop(self) -> PairedDrop | None:
        """Return the fraction of throughput that the candidate image loses.

        `None` below three pairs.
        """
        limit = self.gates.throughput_drop
        return paired_drop(list(self._log_ratios()), slower_above=limit / 2, fast_below=limit)

    def _log_ratios(self) -> Iterator[float]:
        """Yield ln(candidate / own throughput) of each comparable pair.

        Both trainings of a pair have to run on one class of machine.
        """
        for kind in ("", *map(str, range(1, MOST_PAIRS))):
            sides = [self.training(side, kind) for side in (_OWN, _CANDIDATE)]
            records = [self.records[training].record for training in sides if training in self.records]
            speeds = [record.evidence.speed for record in records]
            rates = [speed.samples_per_second for speed in speeds if speed is not None and speed.samples_per_second]
            if len(rates) == len(sides) and len({record.fingerprint.hardware_class for record in records}) == 1:
                yield math.log(rates[1] / rates[0])

    def missing(self) -> str:
        """Return why nothing can be compared, or ""."""
        for side in (_OWN, _CANDIDATE):
            training = self.training(side)
            if training in self.absent:
                return f"the {side} image left no record: {self.absent[training].why}"
            if training not in self.records:
                return f"the {side} image was not trained: the budget is spent"
        own = self.records[self.training(_OWN)].record
        if own.exit.status == "failed":
            return f"the platform's own image does not train: {own.exit.message or own.exit.code}"
        for training, record in self.records.items():
            ran = record.record.fingerprint.container_image
            if training.image and ran != training.image:
                what = f"a training of the candidate image ran in {ran or 'an unnamed image'}"
                return f"{what} (the work pool's base job template has to use the variables image and env)"
        return ""


def is_failed(record: LoadedRecord) -> bool:
    """Return whether the training ended without completing."""
    return record.record.exit.status == "failed"
