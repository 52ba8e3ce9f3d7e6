"""What experiments have settled so far: the causes, as sure as they came out, and the place of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plumbline.judge.comparison import cause_of
from plumbline.judge.mismatches import Mismatch
from plumbline.schema.verdict import Cause, Judgement

__all__ = ["Attribution", "still_likely", "unattributed", "unsteady"]

_SPEED = frozenset({"loader", "transfer", "throttling", "slow-device", "contention", "software"})


@dataclass(frozen=True, slots=True)
class Attribution:
    """The settled causes in the order in which they were settled."""

    causes: tuple[Cause, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    """The modules or parameters of each of these causes."""

    def confirmed(self, cause: Cause, names: tuple[str, ...]) -> Attribution:
        """With one more that an experiment confirmed at these modules or parameters."""
        return self._without_consequences(cause.code, names).settled(cause, names)

    def settled(self, cause: Cause, names: tuple[str, ...] = ()) -> Attribution:
        """With one more, beside those before it."""
        return replace(self, causes=(*self.causes, cause), places=(*self.places, names))

    def judgement(self, base: Judgement, untested: Sequence[Cause]) -> Judgement:
        """The judgement with these causes, the ones not tested to the end, and what no experiment touches."""
        told = (*self.causes, *untested)
        if not told:
            return base
        spoken = {cause.code for cause in told}
        others = tuple(cause for cause in base.causes if cause.code not in spoken and cause.code in _SPEED)
        return base.replace(causes=[one.model_dump() for one in (*told, *others)])

    def _without_consequences(self, code: str, names: tuple[str, ...]) -> Attribution:
        """Less the gradients of that very module: one that computes something else has others."""
        if code != "operator" or not names:
            return self
        prefixes = tuple(f"{name}." for name in names)
        left = [
            (cause, place)
            for cause, place in zip(self.causes, self.places, strict=True)
            if cause.code != "gradient" or not place or not all(name.startswith(prefixes) for name in place)
        ]
        return Attribution(tuple(cause for cause, _ in left), tuple(place for _, place in left))


def unsteady(parting: Mismatch) -> Cause:
    """The cause of a candidate whose unchanged rerun parts from it here."""
    place = f"{parting.at.stage} at step {parting.at.step}" if parting.at.step is not None else parting.at.stage
    return Cause(
        code="nondeterminism",
        sure="confirmed",
        why=f"it does not agree with itself: an unchanged rerun parts at {place}, {parting.at.at}",
        evidence=tuple(finding.metric for finding in parting.findings),
        tried=("an unchanged rerun: other bits",),
    )


_REFUTED_FOR_GOOD = frozenset({"kernel", "precision"})
"""A difference that fp64 on both sides leaves as it is, is no rounding."""


def still_likely(one: Mismatch, suspects: tuple[str, ...], tried: tuple[str, ...]) -> Cause:
    """Return the likeliest cause of a mismatch with nothing but equal bits above, whose experiments restored nothing.

    The place of the cause is certain there. A value that could not be put back exactly does not clear its suspect.
    """
    open_ones = [each for each in one.suspicions if each.code not in _REFUTED_FOR_GOOD]
    return cause_of(one, suspects, (open_ones or list(one.suspicions))[0]).replace(tried=tried)


def unattributed(one: Mismatch, suspects: tuple[str, ...], tried: tuple[str, ...]) -> Cause:
    """The cause of a break that nothing put back explains."""
    return cause_of(one, suspects).replace(
        code="unattributed",
        sure="unattributed",
        why=f"{one.at.stage} differs, and nothing that was put back brought it back",
        tried=tried,
    )
