"""Places of the portable legs in a probe and in a learning curve. Pure."""

from __future__ import annotations

from plumbline.digest import digest_json
from plumbline.schema.spec import ProbeSpec, RunSpec

_LATE, _LEAST_FOR_LATE = 2, 4
"""Of at least four portable steps of a probe, two are later ones, where a fault may be that comes only then."""
_LEAST, _STEPS_PER_LEG, _MOST = 2, 250, 10
"""A curve has two legs, and one more for each 250 steps up to ten, so that their cost stays a small share."""


def curve_places(spec: RunSpec, epoch: int | None = None) -> tuple[int, ...]:
    """Return the steps before which a leg runs; `epoch` is the number of steps of an epoch.

    These are, as far as the curve's length allows: the first and the last step, the first step of the second epoch, the
    first step of the schedule's decay, and steps behind an evaluation.
    """
    learn = spec.learn
    if learn is None:
        return ()
    evaluations = list(range(learn.evaluate_every, learn.steps, learn.evaluate_every))
    room = min(_LEAST + learn.steps // _STEPS_PER_LEG, _MOST)
    wanted = [0, learn.steps - 1, *([epoch] if epoch else []), spec.schedule.warmup_steps]
    spread = evaluations[:: max(1, -(-len(evaluations) // room))]
    places = dict.fromkeys(place for place in (*wanted, *spread) if 0 <= place < learn.steps)
    return tuple(sorted(list(places)[:room]))


def probe_places(probe: ProbeSpec, seed: int) -> tuple[int, tuple[int, ...]]:
    """Return the number of first steps of the probe's portable leg, and its later steps.

    Later steps are the last one and one that the seed draws from those between.
    """
    num = min(probe.portable_steps, probe.steps)
    if num == probe.steps or num < _LEAST_FOR_LATE:
        return num, ()
    first, last = num - _LATE, probe.steps - 1
    drawn = first + int(digest_json(["late", seed])[:8], 16) % (last - first)
    return first, (drawn, last)
