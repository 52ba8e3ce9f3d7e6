"""Steps that are repeated in portable arithmetic ("windows"), and how windows differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import PortableEvidence, PortableWindow
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.schema.stage import Stage

DROPOUT_INPUT = " input"
"""Ending of the name under which a window digests a dropout module's input."""
DROPOUT_MASK = " mask"
"""Ending of the name of the places that a dropout module set to zero."""
Digests = tuple[tuple[str, str | None], ...]

MOST_BEHIND = 4
_LATE, _LEAST_FOR_LATE = 2, 4
"""Of at least four portable steps of a probe, two are later ones, where a fault may be that comes only then."""
_LEAST, _STEPS_PER_WINDOW, _MOST = 2, 250, 10
"""A curve has two windows, and one more for each 250 steps up to ten, so that their cost stays a small share."""


def curve_places(spec: RunSpec, epoch: int | None = None) -> tuple[int, ...]:
    """Return the learning-run steps to repeat in portable arithmetic. `epoch` is the number of steps of an epoch.

    These are, as far as the curve's length allows: the first and the last step, the first step of the second epoch, the
    first step of the schedule's decay, and steps behind an evaluation.
    """
    learn = spec.learn
    if learn is None:
        return ()
    evaluations = list(range(learn.evaluate_every, learn.steps, learn.evaluate_every))
    room = min(_LEAST + learn.steps // _STEPS_PER_WINDOW, _MOST)
    wanted = [0, learn.steps - 1, *([epoch] if epoch else []), spec.schedule.warmup_steps]
    spread = evaluations[:: max(1, -(-len(evaluations) // room))]
    places = dict.fromkeys(place for place in (*wanted, *spread) if 0 <= place < learn.steps)
    return tuple(sorted(list(places)[:room]))


_STEPS_PER_PROOF, _MOST_PROOFS = 125, 20
"""A curve proves one drawn step, and one more for each 125 steps up to twenty: a proof costs about ten plain steps."""
LONGEST_WARMUP = 200
"""Maximum number of steps of the warm-up of `speed`, which its second window counts as trained."""
UNTIMED = 16
"""Number of first steps of `speed` that no timing includes: the shortest warm-up."""


def proof_places(spec: RunSpec, part: str, draw: str) -> tuple[int, ...]:
    """Return the steps to check against fp64: the first, and random ones.

    They are the same on all platforms of a night, and others the next night. Those of `speed` are in the warm-up; one
    more lies behind its measured steps. The drawn ones are odd and even in turn: what is stale at every second step
    shows in one of two.
    """
    probe, speed, learn = spec.probe, spec.speed, spec.learn
    if part == "probe":
        length, num = (probe.steps if probe is not None else 0), 1
    elif part == "speed":
        length, num = (UNTIMED if speed is not None and speed.checks else 0), 2
    else:
        length = learn.steps if learn is not None else 0
        num = min(1 + length // _STEPS_PER_PROOF, _MOST_PROOFS)
    drawn = [1 + int(digest_json([draw, part, place])[:8], 16) % (length - 1) for place in range(num) if length > 1]
    drawn = [step - (step % 2 == place % 2) or min(2, length - 1) for place, step in enumerate(drawn)]
    return tuple(sorted({*range(min(length, 1)), *drawn}))


def speed_places(spec: RunSpec) -> tuple[int, ...]:
    """Return the throughput-run steps to repeat in portable arithmetic; the third one has the training's dropout."""
    speed = spec.speed
    if speed is None or not speed.checks:
        return ()
    last = LONGEST_WARMUP + speed.steps + MOST_BEHIND
    return (0, last, last + 1) if speed.dropout else (0, last)


def steps_behind(draw: str) -> int:
    """Return how many steps follow the throughput measurement, until a checked one."""
    return 1 + int(digest_json([draw, "behind"])[:8], 16) % MOST_BEHIND


def probe_places(probe: ProbeSpec, seed: int) -> tuple[int, tuple[int, ...]]:
    """Return how many first probe steps to repeat, and which later ones.

    Later steps are the last one and one that the seed draws from those between.
    """
    num = min(probe.portable_steps, probe.steps)
    if num == probe.steps or num < _LEAST_FOR_LATE:
        return num, ()
    first, last = num - _LATE, probe.steps - 1
    drawn = first + int(digest_json(["late", seed])[:8], 16) % (last - first)
    return first, (drawn, last)


def window_places(spec: RunSpec, part: str, epoch: int | None) -> tuple[int, ...]:
    """Return the steps of a part to repeat in portable arithmetic. `epoch` is the number of steps of an epoch."""
    if part == "probe":
        first, late = probe_places(spec.probe, spec.seed) if spec.probe is not None else (0, ())
        return (*range(first), *late)
    return speed_places(spec) if part == "speed" else curve_places(spec, epoch)


def first_steps(found: PortableEvidence) -> int:
    """Return the number of consecutive windows from step 0."""
    return next((place for place, window in enumerate(found.windows) if window.step != place), len(found.windows))


def common(left: PortableEvidence, right: PortableEvidence) -> Iterator[tuple[PortableWindow, PortableWindow]]:
    """Yield the windows of the same step on both sides."""
    theirs = {window.step: window for window in right.windows}
    yield from ((window, theirs[window.step]) for window in left.windows if window.step in theirs)


def parts(left: PortableEvidence, right: PortableEvidence) -> Iterator[tuple[Stage, int, str]]:
    """Yield (stage, step, name) of each difference between the windows of two sides."""
    for ours, theirs in common(left, right):
        yield from ((stage, ours.step, name) for stage, name in window_parts(ours, theirs))


def window_parts(ours: PortableWindow, theirs: PortableWindow) -> Iterator[tuple[Stage, str]]:
    """Yield (stage, name) of each difference between two windows."""
    yield from (("batch", name) for name in differing(ours.fed, theirs.fed))
    yield from (("forward", name) for name in differing(ours.outputs, theirs.outputs))
    if ours.loss is None or ours.loss != theirs.loss:
        # Without outputs, a different loss may be the loss function's or the model's.
        yield ("loss", "loss") if ours.outputs else ("forward", "logits")
    # The backward pass starts at the model's end.
    gradients = [*differing(ours.gradients, theirs.gradients)]
    yield from (("gradient", name) for name in reversed(gradients))
    yield from (("clipped", name) for name in differing(ours.clipped, theirs.clipped))
    yield from (("optimizer", name) for name in differing(ours.weights, theirs.weights))
    yield from (("evaluation", name) for name in differing(ours.evaluated, theirs.evaluated))
    if ours.evaluation != theirs.evaluation:
        yield "evaluation", "evaluation"


def other_formats(ours: PortableWindow, theirs: PortableWindow, stage: Stage, name: str) -> tuple[str, str] | None:
    """Return both dtypes of an output if two windows differ there."""
    if stage != "forward" or any(name not in dict(window.outputs) for window in (ours, theirs)):
        return None
    left, right = (window.formats.get(name, "float32") for window in (ours, theirs))
    return (left, right) if left != right else None


def differing(left: Digests, right: Digests) -> Iterator[str]:
    """Yield names with different, missing or non-finite digests.

    A module that only one side calls computes nothing if the module around it has equal bits: an older library calls
    a dropout of rate zero, a newer one does not. So does a repeated call (`#`), as by checkpointing.
    """
    ours, theirs = dict(left), dict(right)

    def is_idle(name: str) -> bool:
        around = name.rpartition(".")[0]
        return "#" in name or ours.get(around, "") == theirs.get(around)

    for name, digest in left:
        if digest is None or (theirs.get(name) != digest and (name in theirs or not is_idle(name))):
            yield name
    yield from (name for name, _ in right if name not in ours and not is_idle(name))
