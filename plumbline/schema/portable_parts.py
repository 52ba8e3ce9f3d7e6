"""Steps that are repeated in fp64 ("windows"), and how windows differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from plumbline.schema import limits
from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import EvaluationEvidence, PortableEvidence, PortableWindow
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.schema.stage import Stage
from plumbline.schema.tolerance import relative

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
    """Return the learning-run steps to repeat in fp64. `epoch` is the number of steps of an epoch.

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
    """Return the throughput-run steps to repeat in fp64; the third one has the training's dropout."""
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
    """Return the steps of a part to repeat in fp64. `epoch` is the number of steps of an epoch."""
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
    """Yield (stage, name) of each difference between two windows, beyond the rounding of fp64."""
    sketches = _Sketches(ours), _Sketches(theirs)

    def different(stage: str, left: Digests, right: Digests) -> Iterator[str]:
        digests = dict(left), dict(right)

        def is_same(name: str) -> bool:
            is_one = digests[0][name] == digests[1][name] or _is_near(*sketches, stage, name)
            return is_one and _formats_of(ours, theirs, stage, name) is None

        return differing(left, right, is_same)

    yield from (("batch", name) for name in differing(ours.fed, theirs.fed))
    yield from (("forward", name) for name in different("forward", ours.outputs, theirs.outputs))
    if not relative(_number(ours.loss), _number(theirs.loss)) <= limits.EXACT:
        # Without outputs, a different loss may be the loss function's or the model's.
        yield ("loss", "loss") if ours.outputs else ("forward", "logits")
    # The backward pass starts at the model's end.
    gradients = [*different("gradient", ours.gradients, theirs.gradients)]
    yield from (("gradient", name) for name in reversed(gradients))
    yield from (("clipped", name) for name in different("clipped", ours.clipped, theirs.clipped))
    yield from (("optimizer", name) for name in different("optimizer", ours.weights, theirs.weights))
    yield from (("evaluation", name) for name in different("evaluated", ours.evaluated, theirs.evaluated))
    if not _has_near_evaluation(ours.evaluation, theirs.evaluation):
        yield "evaluation", "evaluation"


def other_formats(ours: PortableWindow, theirs: PortableWindow, stage: Stage, name: str) -> tuple[str, str] | None:
    """Return both formats of an output if two windows differ there."""
    is_output = stage == "forward" and all(name in dict(window.outputs) for window in (ours, theirs))
    return _formats_of(ours, theirs, stage, name) if is_output else None


def _formats_of(ours: PortableWindow, theirs: PortableWindow, stage: str, name: str) -> tuple[str, str] | None:
    left, right = (window.formats.get(f"{stage} {name}", "float32") for window in (ours, theirs))
    return (left, right) if left != right else None


def _number(text: str | None) -> float | None:
    """Parse a hexadecimal fp64 number; return `None` if malformed."""
    try:
        return None if text is None else float.fromhex(text)
    except (ValueError, OverflowError):
        return None


def is_near(left: Sequence[float], right: Sequence[float], least: float = 0.0) -> bool:
    """Return whether two sketches are of one tensor, computed twice in fp64.

    Their distance is measured by the tensor's norm, and at least by `least`.
    """
    return math.dist(left, right) <= limits.EXACT * max(math.hypot(*left), math.hypot(*right), least)


class _Sketches:
    """Sketches of a window by name, with the largest norm of each stage."""

    def __init__(self, window: PortableWindow) -> None:
        self.by_name = dict(window.sketches)
        self.largest: dict[str, float] = {}
        for key, numbers in window.sketches:
            stage = key.partition(" ")[0]
            self.largest[stage] = max(self.largest.get(stage, 0.0), math.hypot(*numbers))

    def is_rounding(self, key: str) -> bool:
        """Return whether a tensor is rounding beside the largest of its stage."""
        numbers = self.by_name.get(key)
        return numbers is not None and math.hypot(*numbers) <= limits.EXACT * self.largest[key.partition(" ")[0]]


def _is_near(ours: _Sketches, theirs: _Sketches, stage: str, name: str) -> bool:
    left, right = (side.by_name.get(f"{stage} {name}") for side in (ours, theirs))
    if left is None or right is None:
        return False
    # A gradient that is zero by construction is rounding alone, and so is its update, which AdamW divides by its size.
    if stage == "optimizer" and all(side.is_rounding(f"gradient {name}") for side in (ours, theirs)):
        return True
    has_zeros = stage not in ("forward", "evaluated")
    return is_near(left, right, limits.SMALL_GRADIENT * ours.largest[stage] if has_zeros else 0.0)


def _has_near_evaluation(left: EvaluationEvidence | None, right: EvaluationEvidence | None) -> bool:
    if left is None or right is None or left == right:
        return left is right or left == right
    # The logits are the model's output, which is compared before.
    both = [each.replace(loss=None, logits_sha256=left.logits_sha256) for each in (left, right)]
    return both[0] == both[1] and relative(left.loss, right.loss) <= limits.EXACT


def differing(left: Digests, right: Digests, is_same: Callable[[str], bool] | None = None) -> Iterator[str]:
    """Yield names that are missing, not finite, or not the same: by default, of other digests.

    A module that only one side calls computes nothing if the module around it has equal bits: an older library calls
    a dropout of rate zero, a newer one does not. So does a repeated call (`#`), as by checkpointing.
    """
    ours, theirs = dict(left), dict(right)

    def is_equal(name: str) -> bool:
        if name not in ours or name not in theirs:
            return False
        return ours[name] == theirs[name] if is_same is None else is_same(name)

    def is_idle(name: str) -> bool:
        return "#" in name or is_equal(name.rpartition(".")[0])

    for name, digest in left:
        if digest is None or not (is_equal(name) if name in theirs else is_idle(name)):
            yield name
    yield from (name for name, _ in right if name not in ours and not is_idle(name))
