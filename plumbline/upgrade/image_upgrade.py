"""Upgrade to an image: trainings and outcome of each platform.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.judging import gates_of
from plumbline.rounds.plan import Assignment, Round
from plumbline.upgrade.image_answer import image_answer
from plumbline.upgrade.images import ImageTrainings
from plumbline.upgrade.outcome import PlatformOutcome
from plumbline.upgrade.request import UpgradeRequest

__all__ = ["ImageUpgrade", "with_gathered"]


@dataclass(frozen=True, slots=True)
class ImageUpgrade:
    """One candidate image, with the round whose trainings judge it."""

    request: UpgradeRequest
    round: Round
    image: str

    def begin(self, platform: str) -> ImageTrainings:
        """Return the state of a platform before its first training."""
        workload = self.request.chosen_workload
        spec = self.round.specs[workload]
        has_numerics = spec.probe is not None or spec.learn is not None
        return ImageTrainings(
            platform, workload, self.image, gates_of(self.round, platform), has_numerics=has_numerics,
            has_speed=spec.speed is not None,
        )  # fmt: skip

    def outcome(self, trainings: ImageTrainings, notes: Mapping[Assignment, tuple[str, ...]]) -> PlatformOutcome:
        """Return the outcome of a platform.

        `notes` are those of all trainings.
        """
        name, answer = trainings.platform, image_answer(trainings)
        about: dict[str, Any] = {
            "notes": tuple(line for training, lines in notes.items() if training.platform == name for line in lines),
            "optional": self.request.suite.platforms[name].optional,
        }
        if not trainings.records:
            return PlatformOutcome(verdict=answer.verdict, why=answer.sentences[0], **about)
        return PlatformOutcome(verdict=answer.verdict, answer=answer, **about)


def with_gathered(trainings: ImageTrainings, gathered: GatheredRecords) -> ImageTrainings:
    """Add the gathered records and absences of a platform."""
    name = trainings.platform
    records = {training: record for training, record in gathered.records.items() if training.platform == name}
    absent = {training: absence for training, absence in gathered.absent.items() if training.platform == name}
    return replace(trainings, records={**trainings.records, **records}, absent={**trainings.absent, **absent})
