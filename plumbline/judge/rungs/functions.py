"""Calls of torch's functions that differ between two captured loops: suspects, which name what numbers show. Pure.

Two ways to compute one formula call different functions, so that a difference is no cause by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.schema.captured import FunctionCall, FunctionCalls
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Note

_ROOT, _LONGEST = "model", 300


@dataclass(frozen=True, slots=True)
class OtherCall:
    """First call of a module that differs; `None` where one side calls nothing more."""

    module: str
    reference: FunctionCall | None
    candidate: FunctionCall | None

    @property
    def is_format(self) -> bool:
        """Return whether nothing differs but the formats of tensors."""
        ours, theirs = self.reference, self.candidate
        return ours is not None and theirs is not None and ours.replace(formats=theirs.formats) == theirs

    @property
    def statement(self) -> Statement:
        """Return what each side calls."""
        ours, theirs = (_text(*pair) for pair in ((self.reference, self.candidate), (self.candidate, self.reference)))
        return fact("captured.calls", module=self.module, call=theirs, reference=ours)


def _text(call: FunctionCall | None, other: FunctionCall | None) -> Statement:
    """Return a call with what the other one has differently."""
    if call is None:
        return fact("captured.no-call")
    if other is None or call.name != other.name:
        return call.name
    pairs = [(key, value) for key, value in call.arguments.items() if other.arguments.get(key) != value]
    shown = [value if key.isdigit() else f"{key}={value}" for key, value in pairs]
    if call.arguments == other.arguments:
        shown = [call.formats if call.formats != other.formats else call.shapes]
    return f"{call.name}({', '.join(shown)[:_LONGEST]})"


def other_calls(left: FunctionCalls, right: FunctionCalls) -> Iterator[OtherCall]:
    """Yield the first different call of each module, in the order of execution."""
    ours, theirs = _by_module(left), _by_module(right)
    for module in ours | theirs:
        pairs = zip_longest(ours.get(module, ()), theirs.get(module, ()))
        yield from [OtherCall(module, *pair) for pair in pairs if pair[0] != pair[1]][:1]


def _by_module(functions: FunctionCalls) -> dict[str, list[FunctionCall]]:
    found: dict[str, list[FunctionCall]] = {}
    for call in functions.calls:
        found.setdefault(call.module, []).append(call)
    return found


def _sides(pair: Pair) -> tuple[FunctionCalls, FunctionCalls] | None:
    """Return the calls of both records, or `None` where one has none or not all."""
    captured = [side.record.evidence.captured for side in (pair.reference, pair.candidate)]
    left, right = (each.functions if each is not None else None for each in captured)
    return None if left is None or right is None or left.lost or right.lost else (left, right)


def named_by_calls(pair: Pair, mismatch: Mismatch) -> Mismatch:
    """Return a difference of the first step with the call that differs in its module, or in a child or parent."""
    sides = _sides(pair)
    if sides is None or mismatch.at.step or mismatch.stage not in ("forward", "gradient"):
        return mismatch
    place = (mismatch.at.at or _ROOT).partition("#")[0]
    found = {call.module: call for call in other_calls(*sides)}
    within = [module for module in found if module == place or module.startswith(f"{place}.")]
    around = sorted((module for module in found if place.startswith(f"{module}.") or module == _ROOT), key=_depth)
    near = [*within, *reversed(around)]
    if not near:
        return mismatch
    call = found[near[0]]
    first, *others = (replace(each, evidence=(*each.evidence, call.statement)) for each in mismatch.suspicions)
    if call.is_format and first.code == "operator":
        first = replace(first, code="precision", why=call.statement)
    return replace(mismatch, suspicions=(first, *others))


def _depth(module: str) -> int:
    return 0 if module == _ROOT else 1 + module.count(".")


def function_notes(pair: Pair) -> Iterator[Note]:
    """Yield which functions differ, or why that is unknown."""
    sides = _sides(pair)
    if sides is None:
        yield Note(text=fact("captured.no-functions"))
        return
    found = [call.statement for call in other_calls(*sides)]
    if found:
        yield Note(text=fact("captured.functions", num=len(found), first=found[0]))
