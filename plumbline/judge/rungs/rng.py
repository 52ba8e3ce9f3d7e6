"""Rung of random draws: states of generators before each step, and rates of dropout."""

from __future__ import annotations

from itertools import pairwise

from plumbline.judge.mismatches import Mismatch, Suspicion, by_itself, differs, of_log
from plumbline.judge.native import other_software
from plumbline.judge.pair import Pair, first_apart, log_of
from plumbline.records import LoadedRecord
from plumbline.schema.fact import fact
from plumbline.schema.spec import PartName
from plumbline.schema.verdict import Divergence


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
    at, metric = Divergence(stage="rng", step=step, at=names[0]), fact("rng.digest", generator=names[0], step=step)
    suspicion = Suspicion("rng", fact("rng.state", names=", ".join(names), since=since), names=names)
    numbers = {"observed": right[names[0]], "limit": left[names[0]]}
    return differs(at, "probe.rng", metric, suspicion, basis="computed" if step else "given", **numbers)


def draws(pair: Pair, part: PartName) -> tuple[Mismatch | None, Mismatch | None]:
    """Return the first mismatch of generator states in a part's logs: before the first step, or after a later one."""
    logs = pair.logs(part)
    done = first_apart(*(log.states for log in logs)) if logs is not None and _is_seeded_alike(pair) else None
    if done is None:
        return None, None
    why = fact("log.generators", step=done) if done else fact("log.seeds", part=part)
    at = Divergence(stage="rng", step=max(done - 1, 0), at="random generators")
    found = of_log(part, at, "rng", why, shown=True)
    return (None, found) if done else (found, None)


def _is_seeded_alike(pair: Pair) -> bool:
    """Return whether both sides' generators must have equal states at each step; a GPU's draws depend on its model."""
    left, right = pair.reference.record, pair.candidate.record
    sides = (left.fingerprint, right.fingerprint)
    machines = {(side.num_processes, tuple(gpu.name for gpu in side.gpus)) for side in sides}
    return len(machines) == 1 and not other_software(left, right)


def dropout(pair: Pair, part: PartName) -> Mismatch | None:
    """Return the mismatch of the rates of dropout that a part's models were built with."""
    rates = [log.dropout for log in pair.logs(part) or ()]
    if None in rates or len(set(rates)) < 2:
        return None
    ours, theirs = (", ".join(map(str, each or ())) or "0" for each in rates)
    why = fact("log.dropout", dropout=theirs, reference=ours)
    return of_log(part, Divergence(stage="rng", step=0, at="dropout"), "rng", why, shown=True)


def own_dropout(loaded: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return a rate of dropout that is not the spec's."""
    log, wanted = log_of(loaded, part), getattr(getattr(loaded.record.spec, part), "dropout", None)
    # A family may have layers that never drop an element.
    built = set(log.dropout or ()) if log is not None else set[float]()
    if wanted is None or not built or built - {0.0} == {wanted} - {0.0}:
        return None
    rates = ", ".join(map(str, sorted(built)))
    return by_itself("rng", "rng", 0, "dropout", fact("stated.dropout", part=part, dropout=rates, wanted=wanted))


def own_draws(loaded: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return steps that drew dropout and left the random generators where they had left them before."""
    log = log_of(loaded, part)
    if log is None or not any(log.dropout or ()):
        return None
    for (done, states), (later, others) in pairwise(log.states.items()):
        if states == others:
            why = fact("stated.generators", step=done, later=later)
            return by_itself("rng", "rng", done, "random generators", why)
    return None
