"""Rung of generators: random states before each step."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Divergence, Finding


def rng_differs(pair: Pair, step: int) -> tuple[str, ...]:
    """Return the random generators with different states before `step`."""
    left, right = (side.generators for side in pair.common[step])
    return tuple(name for name in left if name in right and left[name] != right[name])


def rng(pair: Pair, step: int) -> Mismatch | None:
    """Return the mismatch of random generator states before `step`."""
    names = rng_differs(pair, step)
    if not names:
        return None
    left, right = (side.generators for side in pair.common[step])
    since = fact("rng.from-the-start") if step == 0 else fact("rng.since", step=step - 1)
    finding = Finding(
        check="probe.rng",
        outcome="drift",
        metric=fact("rng.digest", generator=names[0], step=step),
        observed=right[names[0]],
        limit=left[names[0]],
    )
    why = fact("rng.state", names=", ".join(names), since=since)
    return Mismatch(
        at=Divergence(stage="rng", step=step, at=names[0]),
        findings=(finding,),
        suspicions=(Suspicion("rng", why, names=names),),
        basis="given" if step == 0 else "computed",
    )
