"""Dropout of traced steps: a different mask, or a different input of an equal mask."""

from __future__ import annotations

from plumbline.judge.pair import Pair
from plumbline.schema.evidence import DropoutDraw, Tap
from plumbline.schema.fact import Statement, fact

__all__ = ["drew_differently", "operator_of"]


def drew_differently(pair: Pair, step: int, name: str, kind: str) -> bool:
    """Return whether the module drew a different mask, or contains a dropout that only one side calls.

    Without a trace, any dropout module whose output differs is said to have drawn: the probe trains without dropout.
    """
    if _is_called_once(pair, step, name):
        return True
    draws = _draws(pair, step, name)
    if draws is None:
        return "dropout" in kind.lower()
    return draws[0].input_sha256 == draws[1].input_sha256 and draws[0].dropped_sha256 != draws[1].dropped_sha256


def operator_of(pair: Pair, step: int, tap: Tap) -> Statement:
    """Return class and name of the module that computes a tap's output, or a dropout's different input."""
    draws = _draws(pair, step, tap.name)
    if draws is None or draws[0].input_sha256 == draws[1].input_sha256:
        return f"{tap.kind} {tap.name}"
    parent = tap.name.rpartition(".")[0]
    taps = pair.probes[0].taps if pair.probes else ()
    kind = next((each.kind for each in taps if each.name == parent), "module")
    return fact("dropout.before-dropout", kind=kind, parent=parent, dropout=tap.name.rpartition(".")[2])


def _is_called_once(pair: Pair, step: int, name: str) -> bool:
    """Return whether only one side calls some dropout inside the module."""
    traces = [side.record.evidence.trace for side in (pair.reference, pair.candidate)]
    calls = [
        {draw.name for draw in trace.draws if draw.step == step and draw.name.startswith(f"{name}.")}
        for trace in traces
        if trace is not None
    ]
    return len(calls) > 1 and calls[0] != calls[1]


def _draws(pair: Pair, step: int, name: str) -> tuple[DropoutDraw, DropoutDraw] | None:
    """Return both sides' draws of a dropout module, if both were traced."""
    found = []
    for side in (pair.reference, pair.candidate):
        trace = side.record.evidence.trace
        draws = trace.draws if trace else ()
        found += [next((draw for draw in draws if (draw.step, draw.name) == (step, name)), None)]
    left, right = found
    return (left, right) if left is not None and right is not None else None
