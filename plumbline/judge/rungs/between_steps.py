"""Weights of a traced curve that change between two steps: after an update, before the next forward pass."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import CauseCode, Divergence, Finding

__all__ = ["between_steps"]


def between_steps(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch if the weights differ at the start of `step`, and did not after the step before."""
    left, right = (side.record.evidence.trace for side in (pair.reference, pair.candidate))
    if left is None or right is None or not step:
        return None
    done = left.first + step
    updated, other = (side.weights_sha256 for side in pair.common[step - 1])
    marks = [trace.weights[done] for trace in (left, right) if len(trace.weights) > done]
    if updated != other or len(marks) < 2 or marks[0] == marks[1]:
        return None
    code, event = _event(pair, done)
    why = fact("between-steps.changed", after=step - 1, before=step, event=event)
    finding = Finding(
        check="learn.state",
        outcome="drift",
        metric=fact("between-steps.checksum", step=step),
        observed=marks[1],
        limit=marks[0],
        detail=fact("between-steps.equal-before"),
    )
    at = Divergence(stage="optimizer", step=step, at="weights")
    return Mismatch("state", at, (finding,), (Suspicion(code, why),), basis="given")


def _event(pair: Pair, done: int) -> tuple[CauseCode, Statement]:
    """Return the cause, and what the curve does after `done` steps."""
    spec = pair.reference.record.spec.learn
    if spec is None or done % spec.checkpoint_every == 0:
        return "optimizer", fact("between-steps.at-checkpoint") if spec else ""
    return ("evaluation", fact("between-steps.at-evaluation")) if done % spec.evaluate_every == 0 else ("optimizer", "")
