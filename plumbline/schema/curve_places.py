"""Places of the legs in a learning curve. Pure."""

from __future__ import annotations

from plumbline.schema.spec import RunSpec

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
