"""Whether a difference has disappeared: both sides of each limit, and what counts as a second cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge.attribution import still_likely, unattributed, unsteady
from plumbline.judge.confirm import begin
from plumbline.judge.intervention import Intervention
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.restored import RestoredOutcome, agree_exactly, check_restored, disagreement
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Fact
from plumbline.schema.verdict import Cause, Judgement
from tests.said import said

from .conftest import STEPS, make_record, other_kernel, set_step, with_log
from .made_records import with_evidence
from .test_experiments import mismatch, suspected

WAY = Intervention("a way", STEPS)
DEFINED = replace(WAY, by_definition=True)
NONE = frozenset[str]()


_records: dict[str, LoadedRecord] = {}


def made(**changes: Any) -> LoadedRecord:
    """Return a record that several tests share."""
    key = repr(sorted(changes.items()))
    if key not in _records:
        _records[key] = make_record(**changes)
    return _records[key]


def with_step(record: LoadedRecord, step: int, **changes: Any) -> LoadedRecord:
    return with_log(record, lambda log: set_step(log, step, changes))


def with_evaluation(record: LoadedRecord, **changes: Any) -> LoadedRecord:
    probe = record.record.evidence.probe
    assert probe is not None
    assert probe.evaluation is not None
    return with_evidence(record, probe=probe.replace(evaluation=probe.evaluation.replace(**changes)))


def with_weight(record: LoadedRecord, step: int, name: str, factor: float) -> LoadedRecord:
    """Return a record whose weight has a sketch that differs by a factor."""
    probe = record.record.evidence.probe
    assert probe is not None
    taps, sketch = list(probe.taps), record.sketches["sketch"].copy()
    for place, tap in enumerate(taps):
        if (tap.step, tap.stage, tap.name) == (step, "optimizer", name):
            taps[place], sketch[place] = tap.replace(sha256="f" * 64), sketch[place] * factor
    evidence = record.record.evidence.replace(probe=probe.replace(taps=taps))
    arrays = record.arrays | {"sketches": {"sketch": sketch}}
    return LoadedRecord(record.record.replace(evidence=evidence), record.folder, arrays)


def check(
    reference: LoadedRecord,
    before: LoadedRecord,
    after: LoadedRecord,
    found: Mismatch,
    *ways: Intervention,
    **more: Any,
) -> RestoredOutcome:
    known, sides = more.pop("known", NONE), Pair(reference, before, **more)
    return check_restored(sides, after, mismatch=found, ways=ways or (WAY,), known=known)


Sizes = tuple[float, float, bool]
CLOSER: list[Sizes] = [(2.0**-19, 2.0**-21, True), (2.0**-19, 2.0**-21 * 1.001, False), (2.0**-19, 0.0, True)]
CLOSER += [(2.0**-21, 2.0**-19, False), (0.0, 0.0, False), (0.0, 2.0**-21, False)]


@pytest.mark.parametrize(("was", "now", "is_closer"), CLOSER)
@pytest.mark.parametrize("field", ["loss", "gradient_norm", "evaluation"])
def test_a_difference_below_the_limits_has_to_shrink_to_a_quarter(
    reference: LoadedRecord, field: str, was: float, now: float, is_closer: bool
) -> None:
    def off(size: float) -> LoadedRecord:
        if field == "evaluation":
            return with_evaluation(reference, loss=1 + size)
        return with_step(reference, 3, **{field: 1 + size})

    outcome = check(off(0.0), off(was), off(now), mismatch("loss", 3), DEFINED)
    assert outcome.restored is is_closer
    assert isinstance(outcome.text, Fact)
    assert outcome.text.code == ("restored.equal" if is_closer else "restored.stays")
    # A separate mismatch, and a value with the reference's bits, need no such measure.
    assert check(off(0.0), off(was), off(now), replace(mismatch("loss", 3), basis="given"), DEFINED).restored


@pytest.mark.parametrize(("was", "now", "is_closer"), [(1 + 2e-6, 1 + 4e-7, True), (1 - 2e-6, 1 - 6e-7, False)])
def test_a_weight_below_its_limit_has_to_shrink_too(
    reference: LoadedRecord, was: float, now: float, is_closer: bool
) -> None:
    before, after = (with_weight(reference, 2, "layer.linear.weight", size) for size in (was, now))
    assert check(reference, before, after, mismatch("optimizer", 2), DEFINED).restored is is_closer


def test_the_largest_difference_of_before_decides_in_units_of_its_limit(reference: LoadedRecord) -> None:
    plain = with_step(with_step(reference, 1, loss=1.0, gradient_norm=1.0), 4, loss=1.0)
    # The limit of a norm is wider than that of a loss: its larger difference is nearer to rounding.
    before = with_step(plain, 1, loss=1 + 2e-6, gradient_norm=1 + 4e-6)
    assert check(plain, before, with_step(plain, 1, gradient_norm=1 + 4e-6), mismatch("loss", 1), DEFINED).restored
    assert not check(plain, before, with_step(plain, 1, loss=1 + 2e-6), mismatch("loss", 1), DEFINED).restored
    plain_too = with_evaluation(plain, loss=1.0)
    norm_off = with_step(plain_too, 1, gradient_norm=1 + 1e-6)
    assert check(plain_too, with_evaluation(norm_off, loss=1 + 2e-6), norm_off, mismatch("loss", 1), DEFINED).restored
    # Steps after the experiment's are not compared.
    late = with_step(plain, 4, loss=1 + 4e-6)
    for steps, is_closer in ((4, True), (5, False)):
        way = replace(DEFINED, steps=steps)
        ahead = with_step(late, 1, loss=1 + 1e-6)
        assert check(plain, ahead, late, mismatch("loss", 1), way).restored is is_closer


def test_missing_numbers_are_no_difference_that_shrinks(reference: LoadedRecord) -> None:
    lost = with_step(reference, 3, loss=None)
    assert not check(lost, lost, lost, mismatch("loss", 3), DEFINED).restored
    whole, bare = (with_evaluation(reference, loss=1.0), with_evaluation(reference, loss=1.0, step=STEPS + 1))
    assert not check(whole, with_evaluation(bare, loss=1 + 2e-6), bare, mismatch("loss", 3), DEFINED).restored


@pytest.mark.parametrize(("plan", "text"), [
    ({"noise": {"layer.norm@2": 1e-3}}, "forward at step 2, layer.norm, still differs"),
    ({"noise": {"head@6": 0.5}}, "evaluation, relative error of the logits, still differs"),
    ({"update_factor": {3: 1.5}}, "optimizer at step 3, optimizer, still differs"),
])  # fmt: skip
def test_what_still_differs_is_named_by_its_place(reference: LoadedRecord, plan: dict[str, Any], text: str) -> None:
    after = made(**plan)
    same = check(reference, after, after, mismatch("evaluation", None, code="evaluation"))
    assert not same.restored
    assert text in said(same.text)
    later = check(reference, after, after, mismatch("batch", 0, code="data.order"))
    assert later.restored
    assert said(later.text).startswith("all evidence up to there equals the reference's again; ")
    assert [left.at.at for left in later.left] == [text.split(", ")[1]]


def test_a_later_difference_of_one_code_is_the_same_cause(reference: LoadedRecord) -> None:
    after = made(gradient_factor_at=3)
    for step, code, restored in (
        (1, "gradient", False), (1, "loss", True), (1, "nondeterminism", True), (3, "loss", False), (4, "loss", False),
    ):  # fmt: skip
        outcome = check(reference, after, after, mismatch("gradient", step, code=code))
        assert outcome.restored is restored
        assert bool(outcome.left) is restored
    assert check(reference, after, after, mismatch("gradient", 4), known=frozenset({"gradient"})).restored


def test_a_later_output_is_no_second_cause_of_an_output(reference: LoadedRecord) -> None:
    after = made(noise={"layer.norm@2": 1e-3})
    for rung, restored in (("forward", False), ("batch", True), ("loss", True)):
        assert check(reference, after, after, mismatch(rung, 0, code="data.order")).restored is restored


def test_rounding_has_gone_if_fp64_leaves_a_hundredth_of_it(reference: LoadedRecord) -> None:
    def off(size: float) -> Pair:
        return Pair(with_step(reference, 3, loss=1.0), with_step(reference, 3, loss=1 + size))

    found = mismatch("loss", 3)
    for was, now, restored in (
        (2.0**-10, 2.0**-17, True), (2.0**-10, 2.0**-16, False), (64.0, 2.0**-7, True), (64.0, 2.0**-6, False),
        (2.0**-10, 0.0, True), (0.0, 0.0, True),
    ):  # fmt: skip
        outcome = agree_exactly(found, off(was), off(now), NONE)
        assert outcome.restored is restored
        assert outcome.scale == (0.01 if now == 0 else 1.0)
    for now, scale in ((2.0**-40, 0.01), (2.0**-39, 1.0)):
        assert agree_exactly(found, off(0.5), off(now), NONE).scale == scale


def test_what_fp64_leaves_is_a_second_cause_only_behind_the_rounding(reference: LoadedRecord) -> None:
    before = Pair(reference, made(noise={"layer.linear": 1e-3}))
    after = Pair(reference, made(gradient_factor_at=3))
    for at, known, left in (
        (0, NONE, ["gradient"]), (2, NONE, ["gradient"]), (0, frozenset({"loss"}), ["gradient"]),
        (0, frozenset({"gradient"}), []),
    ):  # fmt: skip
        outcome = agree_exactly(mismatch("forward", at), before, after, known)
        assert [other.suspicions[0].code for other in outcome.left] == left
        assert all(other.is_certain for other in outcome.left)
    # Of two, rounding may still explain the later one.
    both = Pair(reference, with_step(made(gradient_factor_at=3), 4, learning_rate=1e-6))
    outcome = agree_exactly(mismatch("forward", 0), before, both, NONE)
    assert [(other.suspicions[0].code, other.is_certain) for other in outcome.left] == [
        ("gradient", True), ("schedule", False),
    ]  # fmt: skip
    same = agree_exactly(mismatch("forward", 0, code="gradient"), before, after, NONE)
    assert same.left == ()
    # The first suspicion is the one that this experiment tests.
    several = mismatch("forward", 0, code="gradient")
    several = replace(several, suspicions=(*several.suspicions, suspected("operator")))
    assert agree_exactly(several, before, after, NONE).left == ()
    behind = agree_exactly(mismatch("evaluation", 4), after, Pair(reference, reference), NONE)
    assert behind.left == ()


def test_what_is_left_at_the_very_place_of_the_rounding_is_no_second_cause(reference: LoadedRecord) -> None:
    before, after = (Pair(reference, made(noise={"layer.norm@2": size})) for size in (0.5, 1e-3))
    for rung, step, left in (("loss", 1, ["operator"]), ("forward", 2, [])):
        outcome = agree_exactly(mismatch(rung, step, code="gradient"), before, after, NONE)
        assert outcome.restored
        assert [other.suspicions[0].code for other in outcome.left] == left


@pytest.mark.parametrize(("plan", "rung", "step", "differs"), [
    ({"update_factor": {1: 2.0}}, "optimizer", 0, False), ({"update_factor": {1: 2.0}}, "optimizer", 1, True),
    ({"update_factor": {1: 2.0}}, "optimizer", 2, True), ({"update_factor": {1: 2.0}}, "loss", 1, False),
    ({"update_factor": {1: 2.0}}, "loss", 2, True), ({"gradient_factor_at": 1}, "loss", 1, False),
    ({"gradient_factor_at": 1}, "gradient", 1, True), ({"clip": 1e-3}, "loss", 0, False),
    ({"clip": 1e-3}, "clipped", 0, True),
])  # fmt: skip
def test_the_gap_of_a_mismatch_is_measured_at_its_own_place(
    reference: LoadedRecord, plan: dict[str, Any], rung: str, step: int, differs: bool
) -> None:
    before = Pair(reference, made(**plan))
    outcome = agree_exactly(mismatch(rung, step), before, Pair(reference, reference), NONE)
    assert isinstance(outcome.text, Fact)
    assert (outcome.text.values["was"] > 0) is differs  # type: ignore[operator]


def test_a_rerun_is_compared_over_its_steps_and_its_evaluation(reference: LoadedRecord) -> None:
    for plan, step in (({"gradient_factor_at": 3}, 3), ({"noise": {"head@6": 0.5}}, None), ({"seed": 2}, 0)):
        rerun = made(**plan)
        for steps in (2, 3, 4, STEPS - 1, STEPS):
            parting = disagreement(reference, rerun, steps)
            assert (parting is not None) is (steps == STEPS if step is None else steps > step)
    assert disagreement(reference, made(), STEPS) is None


def test_a_rerun_that_differs_is_described_by_its_first_place() -> None:
    assert said(unsteady(mismatch("gradient", 3)).why).endswith("differs at gradient at step 3, layer.norm")
    assert said(unsteady(mismatch("evaluation", None, "logits")).why).endswith("differs at evaluation, logits")


def test_a_cause_that_no_value_restored_is_the_likeliest_that_fp64_does_not_exclude() -> None:
    found = mismatch("forward", 3)
    lines = ("cpu.isa: AVX2 → AVX512", "packages.evaluate: 1 → 2", "hostname: a → b")
    for codes, expected in (
        (("kernel", "precision", "operator", "rng"), "operator"), (("precision", "kernel"), "precision"),
        (("rng", "operator"), "rng"), (("kernel",), "kernel"),
    ):  # fmt: skip
        each = replace(found, suspicions=tuple(suspected(code) for code in codes))
        assert still_likely(each, lines, ("a", "b")).code == expected
        assert unattributed(each, lines, ("a",)).sure == "unattributed"


def test_causes_of_throughput_stand_beside_those_that_experiments_settle() -> None:
    def cause(named: str) -> Cause:
        return Cause(code=named, sure="likely", why="a reason")  # type: ignore[arg-type]

    named = [cause(each) for each in ("loader", "operator", "software")]
    base, plain = Judgement(verdict="drift", causes=tuple(named)), make_record()
    state = begin(plain, plain, base, 8)
    assert state.judgement is base
    settled = replace(state, settled=(cause("gradient"), cause("software")))
    assert [each.code for each in settled.judgement.causes] == ["gradient", "software", "loader"]


def test_an_explained_rounding_below_the_limits_leaves_nothing(reference: LoadedRecord) -> None:
    rounded = made(noise={"layer.norm": 3e-7}, fingerprint=other_kernel())
    assert check(reference, rounded, rounded, mismatch("forward", 0)).restored
    plain = made(noise={"layer.norm": 3e-7})
    assert not check(reference, plain, plain, mismatch("forward", 0)).restored
    assert check(reference, plain, plain, mismatch("forward", 0), rounding=("fp64",)).restored
