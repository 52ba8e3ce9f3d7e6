"""Answer on a candidate container image, by platform. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from plumbline.environments.changes import Failure, PackageChange, changes_between
from plumbline.environments.locks.model import Pin
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import gates_of
from plumbline.night.rounds.plan import RERUN, Assignment, Round
from plumbline.report.sentences import sentence_of
from plumbline.schema.escape import first_of
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.verdict import Judgement, Outcome
from plumbline.upgrade.answer import TrialLine, UpgradeAnswer
from plumbline.upgrade.comparison import PairedDrop, speed_of
from plumbline.upgrade.images import ImageTrainings, is_failed
from plumbline.upgrade.outcome import PlatformOutcome
from plumbline.upgrade.report import effect_of
from plumbline.upgrade.request import UpgradeRequest

_BESIDE = ("python", "os", "driver", "cuda", "cudnn", "nccl")
_INPUTS = "the build of the dataset, of the tokenizer and of the initial weights is not compared: training reads them"


@dataclass(frozen=True, slots=True)
class _Decision:
    """Verdict from the trainings so far, with further trainings needed."""

    verdict: Outcome
    lines: Sequence[str]
    needs: tuple[Assignment, ...] = ()
    judgement: Judgement | None = None
    drop: PairedDrop | None = None


def wanted(trainings: ImageTrainings, most: int) -> tuple[Assignment, ...]:
    """Return the next trainings, in order.

    None once the answer is known, or if they would exceed `most` trainings.
    """
    ended = {*trainings.records, *trainings.absent}
    new = tuple(training for training in _decide(trainings).needs if training not in ended)
    return new if len(ended) + len(new) <= most else ()


def _decide(trainings: ImageTrainings) -> _Decision:
    """Decide by comparing both images, then repeats, then throughput pairs."""
    why, candidate = trainings.missing(), trainings.record("candidate")
    if why or candidate is None:
        is_broken = any(absence.broken for absence in trainings.absent.values())
        needs = (trainings.training("own"), trainings.training("candidate"))
        return _Decision("invalid" if is_broken else "inconclusive", [why], needs)
    if is_failed(candidate):
        return _failed(trainings)
    judgement = trainings.numerics(candidate)
    if judgement is None or judgement.verdict == "pass":
        return _timed(trainings, judgement)
    if judgement.verdict == "drift":
        return _drifted(trainings, judgement)
    lines = [
        f"{finding.check}: {sentence_of(finding.detail or finding.metric)}"
        for finding in judgement.findings
        if finding.outcome != "pass"
    ]
    return _Decision(judgement.verdict, lines or ["the trainings cannot be compared"], judgement=judgement)


def _failed(trainings: ImageTrainings) -> _Decision:
    again, needs = trainings.record("candidate", again=True), (trainings.training("candidate", "again"),)
    if again is None or not is_failed(again):
        ended = "trained in a repeat" if again else "was not repeated"
        return _Decision("inconclusive", [f"the candidate image failed in one training, and {ended}"], needs)
    ending = again.record.exit
    place = f"{ending.part} step {ending.step}: " if ending.step is not None else ""
    failure = Failure(stage="training", message=f"{place}{ending.message or ending.code}"[:4000])
    sentence = f"the candidate image {effect_of('cannot-train', failures=[failure])}"
    line = f"{sentence}; confirmed: it failed twice, the platform's own image trains"
    return _Decision("drift", [line])


def _drifted(trainings: ImageTrainings, judgement: Judgement) -> _Decision:
    """Decide how certain a drift is, by repeating the platform's own image."""
    again, needs = trainings.record("own", again=True), (trainings.training("own", "again"),)
    own = trainings.numerics(again) if again is not None and not is_failed(again) else None
    if own is not None and own.verdict == "drift":
        line = "two trainings of the platform's own image differ: nothing can be said of the candidate image"
        return _Decision("inconclusive", [line], judgement=own)
    is_shown = own is not None and own.verdict == "pass"
    shown = "confirmed: the platform's own image agrees with itself" if is_shown else "likely"
    sentence = f"the candidate image {effect_of('numerics', judgement=judgement)}; {shown}"
    return _Decision("drift", [sentence], needs, judgement)


def _timed(trainings: ImageTrainings, judgement: Judgement | None) -> _Decision:
    if not trainings.has_speed:
        return _Decision("pass", ["training is the same in the candidate image"], judgement=judgement)
    drop, needs = trainings.drop(), trainings.pairs()
    if drop is None:
        line = "too few pairs of trainings on one class of machine to compare the throughput"
        return _Decision("inconclusive", [line], needs, judgement)
    lines: dict[str, tuple[Outcome, str]] = {
        "as fast": ("pass", "training is the same in the candidate image"),
        "slower": ("drift", f"the candidate image {effect_of('speed', drop=drop)}; confirmed in pairs"),
        "undecided": ("inconclusive", f"{drop.num_pairs} pairs do not decide whether the candidate image is slower"),
    }
    verdict, line = lines[drop.outcome]
    return _Decision(verdict, [line], needs, judgement, drop)


def image_answer(trainings: ImageTrainings) -> UpgradeAnswer:
    """Return the answer on an image from its finished trainings."""
    decision, own = _decide(trainings), trainings.record("own")
    judgement, drop = decision.judgement, decision.drop
    changes, beside = _differences(trainings)
    notes = [*decision.lines, "bisecting is off: an image is one change"]
    notes += [f"packages that differ: {first_of(changes)}"] if changes else []
    notes += [f"also different: {', '.join(beside)}"] if beside else []
    return UpgradeAnswer(
        verdict=decision.verdict,
        image=trainings.image,
        current=(own.record.fingerprint.container_image if own else "") or "the work pool's own image",
        candidate=trainings.image,
        candidate_sha256=trainings.image.rpartition(":")[2],
        changes=changes,
        findings=judgement.findings if judgement else (),
        first_divergence=judgement.first_divergence if judgement else None,
        causes=judgement.causes if judgement else (),
        speed=speed_of(drop) if drop else None,
        notes=(*notes, _INPUTS),
        trials=tuple(_lines(trainings)),
        seconds=sum(record.record.seconds for record in trainings.records.values()),
    )


def _differences(trainings: ImageTrainings) -> tuple[tuple[PackageChange, ...], tuple[str, ...]]:
    """Return the packages and other software that differ.

    The records of both images are compared.
    """
    left, right = trainings.record("own"), trainings.record("candidate")
    if left is None or right is None:
        return (), ()
    own, candidate = left.record.fingerprint, right.record.fingerprint
    beside = tuple(
        f"{name} {getattr(own, name) or 'none'} → {getattr(candidate, name) or 'none'}"
        for name in _BESIDE
        if getattr(own, name) != getattr(candidate, name)
    )
    return changes_between(_pins(own), _pins(candidate)), beside


def _pins(fingerprint: Fingerprint) -> dict[str, Pin]:
    """Convert a record's packages to pins.

    Names that no index would accept are left out.
    """
    pins: dict[str, Pin] = {}
    for name, version in fingerprint.packages.items():
        try:
            pin = Pin(name=name, version=version)
        except ValidationError:
            continue
        pins[pin.name] = pin
    return pins


def _lines(trainings: ImageTrainings) -> Iterator[TrialLine]:
    for training, record in trainings.records.items():
        yield _line(training, record.record.exit.status, record.record.seconds)
    for training in trainings.absent:
        yield _line(training, "lost", 0.0)


def _line(training: Assignment, outcome: str, seconds: float) -> TrialLine:
    part = "speed" if training.what.startswith(RERUN) else "numerics"
    changes = (training.image,) if training.image else ()
    return TrialLine(name=training.what, part=part, changes=changes, outcome=outcome, seconds=max(0.0, seconds))


@dataclass(frozen=True, slots=True)
class ImageUpgrade:
    """One candidate image, with the round that judges it."""

    request: UpgradeRequest
    round: Round
    image: str

    def begin(self, platform: str) -> ImageTrainings:
        """Return a platform's state before its first training."""
        workload = self.request.chosen_workload
        spec = self.round.specs[workload]
        has_numerics = spec.probe is not None or spec.learn is not None
        return ImageTrainings(
            platform, workload, self.image, gates_of(self.round, platform), has_numerics=has_numerics,
            has_speed=spec.speed is not None,
        )  # fmt: skip

    def outcome(self, trainings: ImageTrainings, notes: Mapping[Assignment, tuple[str, ...]]) -> PlatformOutcome:
        """Return the outcome for a platform.

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
    """Add a platform's gathered records and reasons for missing ones."""
    name = trainings.platform
    records = {training: record for training, record in gathered.records.items() if training.platform == name}
    absent = {training: absence for training, absence in gathered.absent.items() if training.platform == name}
    return replace(trainings, records={**trainings.records, **records}, absent={**trainings.absent, **absent})
