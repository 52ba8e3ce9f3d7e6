"""Confirmation of a learning curve that separates after a bitwise equal probe.

The first experiment is an unchanged, uninterrupted rerun up to the first step that differs. If it gives the
candidate's bits, the next experiment restores the suspect's value by its definition. If it gives the reference's bits,
the cause is an interruption of the candidate, or chance. If it gives neither, the candidate does not agree with itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from plumbline.digest import bounded_name
from plumbline.judge.comparison import cause_of
from plumbline.judge.confirm import Confirmation, Request
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.learning import learning
from plumbline.judge.suspects import differences
from plumbline.records import LoadedRecord
from plumbline.schema.experiment import Experiment, Replay
from plumbline.schema.experiment import Rung as ReplayRung
from plumbline.schema.verdict import Cause, Judgement

__all__ = ["LearnConfirmation", "begin_confirmation"]

_WAYS: dict[str, tuple[ReplayRung, str]] = {
    "schedule": ("schedule", "the learning rates by the schedule's definition"),
    "rng": ("dropout", "the dropout that the spec asks for"),
    "evaluation": ("evaluation", "the evaluation by its definition"),
}
"""Replays that need no tensors of the reference, by cause."""
_MOST_LOST = 1


@dataclass(frozen=True)
class LearnConfirmation:
    """Immutable state of the test of one learning curve; each step returns a new state."""

    reference: LoadedRecord
    candidate: LoadedRecord
    base: Judgement
    budget: int
    mismatch: Mismatch
    steady: bool = False
    """Whether the unchanged rerun gave the candidate's bits again."""
    closed: Cause | None = None
    tried: tuple[str, ...] = ()
    spent: int = 0
    lost: int = 0

    def next(self) -> Request | None:
        """Return the next experiment; `None` at the end or without budget left."""
        if self.closed is not None or self.spent >= self.budget:
            return None
        if not self.steady:
            return self._request("control experiment: unchanged rerun of the learning curve")
        rung, description = _WAYS[self.mismatch.suspicions[0].code]
        return self._request(description, Replay(rung=rung))

    def absorb(
        self, request: Request, record: LoadedRecord | None, why: str = "no record was returned"
    ) -> LearnConfirmation:
        """Evaluate an experiment's record; `None` means lost, for the reason `why`."""
        spent = replace(self, spent=self.spent + 1)
        if record is None and self.lost < _MOST_LOST:
            return replace(spent, budget=self.budget + 1, lost=self.lost + 1)
        if record is None or record.record.exit.status != "completed":
            reason = why if record is None else record.record.exit.message
            return spent._close(f"{request.experiment.suspect}: could not be run: {reason}")
        if self.steady:
            restored = self._is_equal(self.reference, record)
            text = "the curve equals the reference's again" if restored else "the curve still differs"
            sure = "confirmed" if restored else ""
            return spent._close(f"experiment with {request.experiment.suspect}: {text}", sure=sure)
        return spent._reran(record)

    @property
    def judgement(self) -> Judgement:
        """Return the judgement with its cause as certain as the experiments show."""
        cause = self.closed or self._cause().replace(tried=self.tried)
        others = [known for known in self.base.causes if known.code not in (cause.code, self._cause().code)]
        return self.base.replace(causes=[entry.model_dump() for entry in (cause, *others)])

    def _reran(self, record: LoadedRecord) -> LearnConfirmation:
        if self._is_equal(self.candidate, record):
            steady = replace(self, steady=True, tried=("an unchanged rerun: bitwise equal",))
            return steady if self.mismatch.suspicions[0].code in _WAYS else steady._close("")
        learn, step = self.candidate.record.evidence.learn, self.mismatch.at.step
        interrupted = learn is not None and any(
            at <= (learn.steps if step is None else step) for at in learn.resumed_at
        )
        if interrupted and self._is_equal(self.reference, record):
            return self._close("a rerun without interruption: the curve equals the reference's", sure="confirmed")
        differs = f"an unchanged rerun of the learning curve differs before step {self._steps}"
        why = f"the candidate does not agree with itself: {differs}"
        cause = Cause(code="nondeterminism", sure="confirmed", why=why, tried=("an unchanged rerun: different bits",))
        return replace(self, closed=cause)

    def _close(self, text: str, *, sure: str = "") -> LearnConfirmation:
        tried = tuple(filter(None, (*self.tried, text)))
        cause = self._cause().replace(tried=tried)
        if sure and cause.code != "unattributed":
            cause = cause.replace(sure=sure)
        return replace(self, closed=cause, tried=tried)

    def _cause(self) -> Cause:
        code = self.mismatch.suspicions[0].code
        suspects = differences(self.reference.record.fingerprint, self.candidate.record.fingerprint)
        return next((cause for cause in self.base.causes if cause.code == code), cause_of(self.mismatch, suspects))

    @property
    def _steps(self) -> int:
        """Return the number of steps up to the first that differs; all steps if the losses are equal."""
        learn = self.reference.record.evidence.learn
        whole = learn.steps if learn else 1
        return whole if self.mismatch.at.step is None else min(self.mismatch.at.step + 1, whole)

    def _is_equal(self, side: LoadedRecord, rerun: LoadedRecord) -> bool:
        """Compare the curves over the experiment's steps; over all steps, also weights and evaluations."""
        learn, other = side.record.evidence.learn, rerun.record.evidence.learn
        if learn is None or other is None or len(other.losses) < self._steps:
            return False
        if learn.losses[: self._steps] != other.losses[: self._steps] or None in other.losses[: self._steps]:
            return False
        if self.mismatch.at.step is not None:
            return True
        ends = [(curve.weights_sha256, curve.evaluations) for curve in (learn, other)]
        return learn.weights_sha256 is not None and ends[0] == ends[1]

    def _request(self, description: str, *replays: Replay) -> Request:
        name = bounded_name(f"{self.candidate.record.record_id}-x{self.spent + 1}")
        experiment = Experiment(
            experiment_id=name, suspect=description, steps=self._steps, part="learn", replays=replays
        )
        return Request("candidate", experiment)


def begin_confirmation(
    reference: LoadedRecord, candidate: LoadedRecord, judgement: Judgement, budget: int
) -> Confirmation | LearnConfirmation:
    """Return the state machine for a judgement's causes, with at most `budget` reruns."""
    if budget > 0 and any(
        finding.check == "learn.bits" and finding.outcome == "drift" for finding in judgement.findings
    ):
        mismatch = learning(Pair(reference, candidate))
        if mismatch is not None:
            return LearnConfirmation(reference, candidate, judgement, budget, mismatch)
    return Confirmation.begin(reference, candidate, judgement, budget)
