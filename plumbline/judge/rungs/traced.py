"""Compare traced steps: dropout masks, and weights changed between steps.

Without it, 2 of 216 names become `rng` (ADR 0036).
"""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.schema.evidence import DropoutDraw, Tap
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import CauseCode, Divergence, Finding


def drew_differently(pair: Pair, step: int, name: str, kind: str) -> bool:
    """Return whether the module's dropout drew a different mask.

    Without a trace, any dropout module whose output differs is said to have drawn: the probe trains without dropout.
    """
    if _is_called_once(pair, step, name):
        return True
    draws = _draws(pair, step, name)
    if draws is None:
        return "dropout" in kind.lower()
    return draws[0].input_sha256 == draws[1].input_sha256 and draws[0].dropped_sha256 != draws[1].dropped_sha256


def operator_of(pair: Pair, step: int, tap: Tap) -> Statement:
    """Return class and name of the module that computes a tensor."""
    draws = _draws(pair, step, tap.name)
    if draws is None or draws[0].input_sha256 == draws[1].input_sha256:
        return f"{tap.kind} {tap.name}"
    parent = tap.name.rpartition(".")[0]
    taps = pair.probes[0].taps if pair.probes else ()
    kind = next((each.kind for each in taps if each.name == parent), "module")
    return fact("dropout.before-dropout", kind=kind, parent=parent, dropout=tap.name.rpartition(".")[2])


def _is_called_once(pair: Pair, step: int, name: str) -> bool:
    """Return whether only one side calls a dropout inside the module.

    A module that skips all of its parts computes something else, and draws nothing by that alone.
    """
    traces = [side.record.evidence.trace for side in (pair.reference, pair.candidate)]
    draws = [{draw.name for draw in trace.draws if draw.step == step} for trace in traces if trace is not None]
    if len(draws) < 2 or pair.probes is None:
        return False
    inside = [{each for each in names if each.startswith(f"{name}.")} for names in draws]
    called = (
        {
            tap.name
            for tap in probe.taps
            if (tap.step, tap.stage) == (step, "forward") and tap.name.startswith(f"{name}.")
        }
        for probe in pair.probes
    )
    others = [names - draws[0] - draws[1] for names in called]
    return inside[0] != inside[1] and others[0] == others[1]


def _draws(pair: Pair, step: int, name: str) -> tuple[DropoutDraw, DropoutDraw] | None:
    """Return both sides' recorded dropout masks of a module."""
    found = []
    for side in (pair.reference, pair.candidate):
        trace = side.record.evidence.trace
        draws = trace.draws if trace else ()
        found += [next((draw for draw in draws if (draw.step, draw.name) == (step, name)), None)]
    left, right = found
    return (left, right) if left is not None and right is not None else None


def between_steps(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch if weights changed between two training steps."""
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
    """Return the likely cause of weights changed after `done` steps."""
    spec = pair.reference.record.spec.learn
    if spec is None or done % spec.checkpoint_every == 0:
        return "optimizer", fact("between-steps.at-checkpoint") if spec else ""
    return ("evaluation", fact("between-steps.at-evaluation")) if done % spec.evaluate_every == 0 else ("optimizer", "")
