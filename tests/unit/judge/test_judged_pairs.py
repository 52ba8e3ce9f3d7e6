"""Completeness, limits, order of rungs, and the choice of a reference, each on both sides of its rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare, judge_round, merge, trusted_reference
from plumbline.judge.consensus import own_error
from plumbline.judge.ladder import RUNGS, position, walk
from plumbline.judge.mismatches import Mismatch, Suspicion, is_same_place, with_kernel_last, without_nondeterminism
from plumbline.judge.origin import origin, other_kernels
from plumbline.judge.pair import Pair, TapError
from plumbline.judge.tolerance import floor_of, growth, limit, relative
from plumbline.judge.validity import stands_alone, validity
from plumbline.judge.whole import missing_evidence, unequal_evidence
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Tap
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Cause, Divergence, Finding, Judgement, Note

from .conftest import STEPS, make_record, other_kernel
from .kept_verdicts import keep, kept
from .test_rounds import checked, named, old
from .test_whole import EVALUATION_ROWS, evaluation, keep_taps, whole

compare = kept(compare)
judge_round = kept(judge_round)
origin = kept(origin)
walk = kept(walk)

Content = dict[str, Any]
Change = Callable[[Content], None]


def edit(made: LoadedRecord, *changes: Change) -> LoadedRecord:
    content = made.record.model_dump() | {"arrays": {name: dict(arrays) for name, arrays in made.arrays.items()}}
    for change in changes:
        change(content)
    arrays = content.pop("arrays")
    return LoadedRecord(RunRecord.model_validate(content), made.folder, arrays)


def probe(content: Content) -> Content:
    found: Content = content["evidence"]["probe"]
    return found


def at_step(step: int, **fields: Any) -> Change:
    return lambda content: probe(content)["steps"][step].update(fields)


def in_spec(part: str, **fields: Any) -> Change:
    """Change a part's spec, and the spec's digest."""

    def change(content: Content) -> None:
        content["spec"][part] = {**content["spec"][part], **fields}
        content["spec_sha256"] = make_record().record.spec.replace(**content["spec"]).digest

    return change


def tapped(step: int, stage: str, name: str, **fields: Any) -> Change:
    def change(content: Content) -> None:
        for tap in probe(content)["taps"]:
            if (tap["step"], tap["stage"], tap["name"]) == (step, stage, name):
                tap.update(fields)

    return change


# Completeness.


def lacks(made: LoadedRecord, side: str = "candidate") -> list[tuple[Any, ...]]:
    found = keep(list(missing_evidence(made, side)))
    assert all(f"the {side} " in finding.detail for finding in found)
    return [(finding.check, finding.outcome, finding.observed, finding.limit) for finding in found]


def experiment(**fields: Any) -> Change:
    return lambda content: content.update(experiment={"experiment_id": "e", "steps": STEPS, **fields})


def leg(steps: int, **fields: Any) -> Change:
    made = make_record(leg=True).record.model_dump()["evidence"]["probe"]["portable"]
    return lambda content: probe(content).update(portable={**made, "steps": made["steps"][:steps], **fields})


def taps_where(keep_tap: Callable[[Content], bool]) -> Change:
    return lambda content: keep_taps(content, keep_tap)


def without(*names: str) -> Change:
    return lambda content: content["evidence"].update(dict.fromkeys(names))


def shards(*sizes: int) -> Change:
    def change(content: Content) -> None:
        first = content["evidence"]["data"]["shards"][0]
        parts = [{**first, "key": f"evaluation/{place}.parquet", "num_rows": n} for place, n in enumerate(sizes)]
        content["evidence"]["data"]["shards"] = [first, *parts]

    return change


def evaluated(**fields: Any) -> Change:
    return lambda content: probe(content)["evaluation"].update(fields)


LACKING: dict[str, tuple[tuple[Change, ...], list[tuple[Any, ...]]]] = {
    "nothing": ((), []),
    "data": ((without("data"),), [("probe.evidence", "inconclusive", None, None)]),
    "model": ((without("model"),), [("probe.evidence", "inconclusive", None, None)]),
    "probe": ((without("probe"),), [("probe.evidence", "inconclusive", None, None)]),
    "learn and speed": ((without("learn", "speed"),), [
        ("speed.evidence", "inconclusive", None, None), ("learn.evidence", "inconclusive", None, None),
    ]),
    "an evaluation": (
        (lambda c: probe(c).update(evaluation=None),), [("probe.evaluation", "inconclusive", None, None)],
    ),
    "speed of too many steps": (
        (lambda c: c["evidence"]["speed"].update(steps=11),), [("speed.steps", "invalid", 11, 10)],
    ),
    "a portable leg that was not asked for": ((leg(1),), []),
    "a portable leg": (
        (in_spec("probe", portable_steps=2),), [("probe.portable", "inconclusive", None, None)],
    ),
    "a lost portable leg": (
        (in_spec("probe", portable_steps=2), lambda c: probe(c).update(lost_legs={"portable": "memory"})), [],
    ),
    "another lost leg": (
        (in_spec("probe", portable_steps=2), lambda c: probe(c).update(lost_legs={"envelope": "memory"})),
        [("probe.portable", "inconclusive", None, None)],
    ),
    "a whole portable leg": ((in_spec("probe", portable_steps=2), leg(2)), []),
    "half of a portable leg": (
        (in_spec("probe", portable_steps=2), leg(1)), [("probe.portable", "invalid", 1, 2)],
    ),
    "more of a portable leg": ((in_spec("probe", portable_steps=1), leg(2)), [("probe.portable", "invalid", 2, 1)]),
    "a portable leg shorter than the probe": (
        (in_spec("probe", portable_steps=99), leg(2)), [("probe.portable", "invalid", 2, STEPS)],
    ),
    "a model without portable form": ((in_spec("probe", portable_steps=2), leg(0, unportable="a kernel")), []),
    "fp64 errors of the envelope": (
        (lambda c: probe(c)["envelope"].update(fp64_errors=[]),), [("probe.envelope", "invalid", 30, 30)],
    ),
    "errors of the envelope": (
        (lambda c: probe(c)["envelope"].update(errors=[1e-7] * 7),), [("probe.envelope", "invalid", 7, 30)],
    ),
    "a gradient norm, as loss scaling skipped the step": ((at_step(3, gradient_norm=None, loss_scale=2.0),), []),
    "a gradient norm": ((at_step(3, gradient_norm=None),), [("probe.steps", "inconclusive", None, None)]),
    "parts of two steps": (
        (at_step(1, rng={}), at_step(4, gradients_sha256=None)), [("probe.steps", "inconclusive", None, None)],
    ),
    "two batch fields": (
        (lambda c: [c["arrays"]["batches"].pop(name) for name in ("labels", "input_ids")],),
        [("probe.batches", "invalid", None, None)],
    ),
    "states of two steps": (
        (lambda c: [c["arrays"]["state"].pop(f"rng/{step}") for step in (2, 4)],), [("probe.state", "invalid", 4, 6)],
    ),
    "forward taps": (
        (taps_where(lambda tap: tap["stage"] != "forward"),), [("probe.taps", "inconclusive", 0, 1)],
    ),
    "gradients of a middle step": (
        (taps_where(lambda tap: (tap["step"], tap["stage"]) != (2, "gradient")),), [("probe.taps", "invalid", 0, None)],
    ),
    "weights of all tap steps": (
        (taps_where(lambda tap: tap["stage"] != "weight"),), [("probe.taps", "invalid", 0, None)],
    ),
    "two of three weights": (
        (taps_where(lambda tap: tap["stage"] != "weight" or tap["name"] == "head.weight"),),
        [("probe.taps", "invalid", 1, 3)],
    ),
    "one of three weights at the last step": (
        (taps_where(lambda tap: (tap["step"], tap["stage"], tap["name"]) != (5, "weight", "embed.weight")),),
        [("probe.taps", "invalid", 2, 3)],
    ),
    "a loss of the curve": (
        (lambda c: c["evidence"]["learn"].update(losses=[0.5] * 9),), [("learn.steps", "invalid", 9, 8)],
    ),
    "steps of the curve": ((lambda c: c["evidence"]["learn"].update(steps=7),), [("learn.steps", "invalid", 8, 8)]),
    "all evaluations of the curve": (
        (lambda c: c["evidence"]["learn"].update(evaluations=[]),), [("learn.evaluations", "invalid", 0, 2)],
    ),
    "no evaluation, but their places": (
        (lambda c: c["evidence"]["learn"].update(evaluations=[evaluation(3), evaluation(8)]),),
        [("learn.evaluations", "invalid", 2, 2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("name", LACKING)
def test_each_missing_item_is_counted(name: str, side: str) -> None:
    changes, expected = LACKING[name]
    assert lacks(edit(whole(), *changes), side) == expected


def test_a_record_without_parts_lacks_each_of_them() -> None:
    made = whole()
    assert lacks(LoadedRecord(made.record, made.folder)) == [
        ("probe.batches", "invalid", None, None), ("probe.state", "invalid", 0, 6), ("probe.rows", "invalid", 0, 30),
        ("probe.sketches", "invalid", None, None),
    ]  # fmt: skip


def test_a_curve_whose_last_step_is_no_multiple_is_evaluated_there_as_well() -> None:
    changes = (in_spec("learn", evaluate_every=3), lambda c: c["evidence"]["learn"].update(evaluations=()))
    assert lacks(edit(whole(), *changes)) == [("learn.evaluations", "invalid", 0, 3)]
    due = [evaluation(step) for step in (3, 6, 8)]
    assert lacks(edit(whole(), changes[0], lambda c: c["evidence"]["learn"].update(evaluations=due))) == []


@pytest.mark.parametrize(
    ("sizes", "rows", "bad"),
    [
        ((), EVALUATION_ROWS, False),
        ((), 1, False),
        ((), 0, True),
        ((), EVALUATION_ROWS + 1, True),
        ((9,), EVALUATION_ROWS, False),
        ((9,), EVALUATION_ROWS - 1, True),
        ((9,), EVALUATION_ROWS + 1, True),
        ((2, 3), 5, False),
        ((2, 3), 3, True),
        ((2, 3), EVALUATION_ROWS, True),
    ],
)
def test_an_evaluation_has_the_rows_asked_for_or_all_of_its_split(sizes: tuple[int, ...], rows: int, bad: bool) -> None:
    ends = [evaluation(4, rows), evaluation(8, rows)]
    changes = (shards(*sizes), evaluated(num_rows=rows), lambda c: c["evidence"]["learn"].update(evaluations=ends))
    made = edit(whole(), *changes)
    due = min(EVALUATION_ROWS, sum(sizes)) if sizes else EVALUATION_ROWS
    checks = ["probe.evaluation", "learn.evaluation", "learn.evaluation"]
    assert lacks(made, "reference") == ([(check, "invalid", rows, due) for check in checks] if bad else [])
    assert lacks(made) == []


def test_an_experiment_is_asked_for_its_own_steps_only() -> None:
    bare = (without("learn", "speed"),)
    assert lacks(edit(whole(), experiment(), *bare)) == []
    assert lacks(edit(whole(), experiment(steps=5), *bare))[0] == ("probe.steps", "invalid", 6, 5)
    assert lacks(edit(whole(), experiment(), without("probe"))) == [("probe.evidence", "inconclusive", None, None)]
    assert lacks(edit(whole(), experiment(part="learn"), without("probe", "speed"))) == []
    assert lacks(edit(whole(), experiment(part="learn"), without("learn"))) == [
        ("learn.evidence", "inconclusive", None, None),
    ]
    # Of a trace, every step has taps.
    traced = experiment(part="learn", steps=9, trace=3)
    assert lacks(edit(whole(), traced)) == [("probe.taps", "invalid", 0, None)]
    assert lacks(edit(whole(), experiment(part="learn", steps=9, trace=2)))[0] == ("probe.steps", "invalid", 6, 7)
    # An experiment records no envelope, portable leg or evaluation.
    gone = (in_spec("probe", portable_steps=2), lambda c: probe(c).update(evaluation=None, envelope=None))
    assert lacks(edit(whole(), experiment(), *gone)) == []


def unequal(left: LoadedRecord, right: LoadedRecord) -> list[tuple[Any, ...]]:
    found = keep(list(unequal_evidence(left, right)))
    return [(finding.check, finding.observed, finding.limit) for finding in found]


@pytest.mark.parametrize("size", [EVALUATION_ROWS - 2, EVALUATION_ROWS + 2])
def test_two_last_evaluations_have_equally_many_rows(size: int) -> None:
    def ends(first: int, last: int) -> Change:
        found = [evaluation(4, first), evaluation(8, last)]
        return lambda content: content["evidence"]["learn"].update(evaluations=found)

    other = edit(whole(), ends(EVALUATION_ROWS, size))
    assert unequal(whole(), other) == [("learn.evaluation", size, EVALUATION_ROWS)]
    assert unequal(other, whole()) == [("learn.evaluation", EVALUATION_ROWS, size)]
    assert unequal(whole(), edit(whole(), ends(size, EVALUATION_ROWS))) == []
    # Where the probe's evaluations differ as well, `evaluation` is the cause.
    both = edit(whole(), ends(EVALUATION_ROWS, size), evaluated(num_rows=size))
    assert unequal(whole(), both) == unequal(both, whole()) == []
    for lost in (lambda c: probe(c).update(evaluation=None), without("probe")):
        assert unequal(whole(), edit(other, lost)) == [("learn.evaluation", size, EVALUATION_ROWS)]
    none = edit(whole(), lambda content: content["evidence"]["learn"].update(evaluations=[]))
    assert unequal(whole(), none) == unequal(none, whole()) == []


def test_taps_of_two_architectures_are_not_compared() -> None:
    fewer = taps_where(lambda tap: (tap["step"], tap["name"]) != (2, "layer.linear.weight"))
    assert unequal(whole(), edit(whole(), fewer)) == [("probe.taps", 28, 30)]
    assert unequal(edit(whole(), fewer), whole()) == [("probe.taps", 28, 30)]
    other: Change = lambda content: content["evidence"]["model"].update(architecture_sha256="9" * 64)  # noqa: E731
    assert unequal(whole(), edit(whole(), fewer, other)) == []
    assert unequal(whole(), edit(whole(), fewer, without("model"))) == []


# Records that cannot be judged.


@pytest.mark.parametrize(
    ("end", "outcome", "observed", "detail"),
    [
        ({"code": "non-finite", "message": "nan"}, "invalid", "non-finite", "failed: nan"),
        ({"code": "non-finite", "part": "probe"}, "invalid", "non-finite", "failed in probe: non-finite"),
        ({"code": "labels", "message": "x", "part": "learn", "step": 7}, "invalid", "labels",
         "failed in learn step 7: x"),
        ({"code": "labels", "step": 7}, "invalid", "labels", "failed in step 7: labels"),
        ({"code": "unavailable", "part": "speed"}, "inconclusive", "unavailable", "failed in speed: unavailable"),
        ({}, "invalid", "failed", "failed: "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("side", [0, 1])
def test_a_failure_names_its_place(end: dict[str, Any], outcome: str, observed: str, detail: str, side: int) -> None:
    pair = [whole(), whole()]
    pair[side] = edit(pair[side], lambda content: content.update(exit={"status": "failed", **end}))
    (finding,) = keep(validity(*pair))
    assert (finding.check, finding.outcome, finding.observed, finding.limit) == (
        "record.exit", outcome, observed, "completed",
    )  # fmt: skip
    assert finding.detail == f"the {('reference', 'candidate')[side]} {detail}"


@pytest.mark.parametrize("side", [0, 1])
def test_a_loss_that_is_missing_is_invalid_at_its_first_step(side: int) -> None:
    pair = [whole(), whole()]
    pair[side] = edit(
        pair[side], at_step(2, loss=None), at_step(4, loss=None),
        lambda content: content["evidence"]["learn"].update(losses=[0.5] * 5 + [None] + [0.5] * 2),
    )  # fmt: skip
    found = keep(validity(*pair))
    assert [(finding.check, finding.outcome) for finding in found] == [
        ("probe.loss", "invalid"),
        ("learn.loss", "invalid"),
    ]
    assert found[0].metric == "loss at step 2"
    assert all(("reference", "candidate")[side] in finding.detail for finding in found)
    assert not stands_alone(pair[side])
    assert stands_alone(pair[1 - side])


@pytest.mark.parametrize("side", [0, 1])
def test_an_experiment_is_not_compared_with_a_training(side: int) -> None:
    pair = [whole(), whole()]
    pair[side] = edit(pair[side], experiment())
    assert [finding.check for finding in keep(validity(*pair))] == ["record.experiment"]
    assert not validity(pair[side], pair[side])
    assert compare(pair[0], pair[1]).verdict == "invalid"


def test_two_specs_are_named_with_their_digests() -> None:
    left, right = whole(), make_record()
    (finding,) = validity(left, right)
    assert (finding.observed, finding.limit) == (right.record.spec_sha256, left.record.spec_sha256)


# Limits.


def test_missing_and_negative_numbers_have_relative_errors() -> None:
    assert [relative(4.0, 3.0), relative(4.0, 5.0), relative(-4.0, 4.0), relative(8.0, -4.0)] == [0.25, 0.25, 2.0, 1.5]
    assert [limit(1.0, stage, "bf16", 18) for stage in ("forward", "weight")] == [32.0, 32.0]
    assert limit(None, "loss", "tf32", 9) == 2 * floor_of("loss", "tf32") == 8 / 1024
    assert limit(-1.0, "loss", "fp32") == floor_of("loss", "fp32")
    assert growth(4) == pytest.approx(1.3607901)


TAP = Tap(step=0, stage="forward", name="m", kind="L", dtype="float32", shape=(1,), norm=1.0, sha256="a" * 64)


@pytest.mark.parametrize(
    ("error", "bound", "over", "ratio", "shown"),
    [
        (3.0, 2.0, True, 1.5, 2.0), (2.0, 2.0, False, 1.0, 2.0), (1.0, 4.0, False, 0.25, 4.0),
        (0.0, 0.0, False, 0.0, 0.0), (1.0, 0.0, True, 0.0, 0.0), (1.0, math.inf, False, 0.0, None),
        (math.inf, math.inf, True, math.inf, None), (math.nan, 1.0, True, math.inf, 1.0),
    ],
)  # fmt: skip
def test_an_error_is_measured_in_units_of_its_limit(
    error: float, bound: float, over: bool, ratio: float, shown: float | None
) -> None:
    item = TapError(TAP, TAP, error, bound, (None, None))
    assert (item.over, item.ratio, item.finite_limit) == (over, ratio, shown)


def test_a_pair_without_a_probe_has_no_steps_errors_or_notes() -> None:
    bare = edit(whole(), without("probe"))
    for pair in (Pair(bare, whole()), Pair(whole(), bare), Pair(bare, bare)):
        assert (pair.probes, pair.common, pair.tap_steps, pair.errors(0, "forward")) == (None, (), frozenset(), ())
        assert pair.rounding_only == frozenset()
        assert pair.loss_limit(3) == pytest.approx(floor_of("loss", "fp32") * 2 ** (1 / 3))
        assert origin(pair) is None


def test_steps_limit_a_pair_and_the_precision_is_the_parts() -> None:
    pair = Pair(make_record(), make_record(), steps=4)
    assert [left.step for left, _ in pair.common] == [0, 1, 2, 3]
    assert [len(Pair(make_record(), make_record(), steps=count).common) for count in (None, 0, 9)] == [6, 0, 6]
    assert pair.tap_steps == {0, 2, 5}
    made = edit(whole(), in_spec("probe", precision="bf16"), in_spec("learn", precision="fp16"))
    assert Pair(made, made).precision == "bf16"
    curve = edit(made, experiment(part="learn"))
    assert Pair(curve, curve).precision == "fp16"
    other = edit(made, experiment(part="probe"))
    assert Pair(other, other).precision == "bf16"
    for part in ("probe", "learn"):
        gone = edit(made, experiment(part=part), lambda content, part=part: content["spec"].update({part: None}))
        assert Pair(gone, gone).precision == "fp32"


def errors_of(left: LoadedRecord, right: LoadedRecord, stage: Any = "forward", **options: Any) -> dict[str, TapError]:
    return {item.reference.name: item for item in Pair(left, right, **options).errors(0, stage)}


def test_a_tensor_that_cannot_be_compared_is_infinitely_far() -> None:
    left, other = make_record(), {"sha256": "e" * 64}
    cases: list[tuple[float, tuple[Change, ...]]] = [
        (0.0, (tapped(0, "forward", "embed", norm=None),)),
        (math.inf, (tapped(0, "forward", "embed", norm=None, **other),)),
        (math.inf, (tapped(0, "forward", "embed", shape=(4, 15), **other),)),
        (0.0, (tapped(0, "forward", "embed", **other),)),
    ]
    for error, changes in cases:
        right = edit(left, *changes)
        assert errors_of(left, right)["embed"].error == error
        assert errors_of(right, left)["embed"].error == error
    moved = edit(left, tapped(0, "forward", "embed", **other))
    bare = LoadedRecord(moved.record, moved.folder)
    assert errors_of(left, bare)["embed"].error == errors_of(bare, left)["embed"].error == math.inf
    norm = next(tap.norm for tap in left.record.evidence.probe.taps if tap.name == "embed")  # type: ignore[union-attr]
    assert norm
    wider = edit(left, tapped(0, "forward", "embed", norm=norm * 1.25, **other))
    assert errors_of(left, wider)["embed"].error == pytest.approx(0.25)
    assert errors_of(wider, left)["embed"].error == pytest.approx(0.2)
    assert errors_of(left, wider)["head"].error == 0


def envelope(place: int, **values: Any) -> Change:
    """Change one entry of each of the envelope's lists, or a whole list."""

    def change(content: Content) -> None:
        for name, value in values.items():
            entries = list(probe(content)["envelope"][name])
            entries[place] = value
            probe(content)["envelope"][name] = entries

    return change


@pytest.mark.parametrize(
    ("ours", "theirs", "bound"),
    [
        ({"errors": 1e-4}, {"errors": 3e-4}, 8e-4),
        ({"errors": 3e-4}, {"errors": 1e-4}, 8e-4),
        ({"errors": None}, {"errors": 1e-4}, 8e-4),
        ({"errors": 1e-4}, {"errors": None}, 8e-4),
        ({"errors": None}, {"errors": None, "fp64_errors": None}, 40 * 2.0**-23),
        # The distances from both fp64 runs are a second measurement.
        ({"errors": 1e-4, "fp64_errors": 2e-4}, {"errors": 1e-4, "fp64_errors": 5e-4}, 16e-4),
        ({"errors": 1e-4, "fp64_errors": 5e-4}, {"errors": 1e-4, "fp64_errors": 2e-4}, 16e-4),
        ({"errors": 1e-4, "fp64_errors": 5e-4}, {"errors": 1e-4, "fp64_errors": None}, 8e-4),
        ({"fp64_errors": 0.6}, {"fp64_errors": 0.7}, math.inf),
        ({"errors": 1e-4, "fp64_errors": 0.6}, {"errors": 1e-4, "fp64_errors": 2e-4}, 16e-4),
        ({"errors": 1e-4, "fp64_errors": 0.6}, {"errors": 1e-4, "fp64_errors": None}, 8e-4),
    ],
)
def test_a_limit_is_eight_times_the_smaller_measurement(
    ours: dict[str, Any], theirs: dict[str, Any], bound: float
) -> None:
    left, right = edit(make_record(), envelope(2, **ours)), edit(make_record(), envelope(2, **theirs))
    found = errors_of(left, right)
    assert found["layer.norm"].limit == pytest.approx(bound)
    assert found["layer.norm"].own == (
        ours.get("fp64_errors", 2e-7), theirs.get("fp64_errors", 2e-7),
    )  # fmt: skip
    assert found["layer.norm"].places == (2, 2)
    assert errors_of(left, right, scale=0.5)["layer.norm"].limit == pytest.approx(bound / 2)
    noise = frozenset({("forward", "layer.norm"), ("gradient", "head")})
    quiet = errors_of(left, right, noise=noise)
    assert [name for name, item in quiet.items() if math.isinf(item.limit)] == ["layer.norm"]
    assert Pair(left, right, noise=noise).rounding_only == {("forward", "layer.norm")}


def test_a_limit_that_was_not_measured_grows_from_the_first_step() -> None:
    bare: Change = lambda content: probe(content).update(envelope=None)  # noqa: E731
    pair = Pair(edit(make_record(), bare), edit(make_record(), bare))
    for step in (0, 2, 5):
        wanted = floor_of("forward", "fp32") * 2 ** (step / 9)
        assert [item.limit for item in pair.errors(step, "forward")] == pytest.approx([wanted] * 4)
        assert pair.loss_limit(step) == pytest.approx(floor_of("loss", "fp32") * 2 ** (step / 9))
    assert replace(pair, scale=0.25).loss_limit(0) == floor_of("loss", "fp32") / 4


def test_the_losss_limit_is_the_smaller_curves_at_its_step() -> None:
    def curve(*values: float) -> Change:
        return lambda content: probe(content)["envelope"].update(loss=values)

    left, right = edit(make_record(), curve(1e-4, 3e-4, 1e-3)), edit(make_record(), curve(2e-4, 2e-4))
    for pair in (Pair(left, right), Pair(right, left)):
        assert [pair.loss_limit(step) for step in (0, 1, 2)] == pytest.approx([8e-4, 16e-4, 8e-3])
        assert pair.loss_limit(3) == pytest.approx(floor_of("loss", "fp32") * 2 ** (3 / 9))


def test_a_weights_earlier_rounding_still_counts_later() -> None:
    name, places = "head.weight", {}
    left = make_record(fingerprint=other_kernel())
    taps = left.record.evidence.probe.taps  # type: ignore[union-attr]
    places = {tap.step: index for index, tap in enumerate(taps) if (tap.stage, tap.name) == ("weight", name)}
    right = edit(left, *(tapped(step, "weight", name, sha256="e" * 64) for step in (0, 2)))
    right.arrays["sketches"]["sketch"] = left.arrays["sketches"]["sketch"].copy()
    norm = taps[places[0]].norm or 0.0
    right.arrays["sketches"]["sketch"][places[0]][0] += 1e-5 * norm
    pair = Pair(left, right)
    by_step = {
        step: next(item for item in pair.errors(step, "weight") if item.reference.name == name) for step in places
    }
    assert by_step[0].error == pytest.approx(1e-5)
    floor = floor_of("weight", "fp32")
    assert by_step[0].limit == pytest.approx(floor)
    for step in (2, 5):
        assert by_step[step].limit == pytest.approx(floor + 1e-5 * norm / (taps[places[step]].norm or 1.0))
    # An error beyond rounding excuses nothing later.
    right.arrays["sketches"]["sketch"][places[0]][0] += norm
    assert [item.limit for item in Pair(left, right).errors(2, "weight")] == pytest.approx([floor] * 3)


def test_an_experiments_distance_from_fp64_is_its_trainings() -> None:
    training = edit(make_record(), envelope(1, fp64_errors=3e-3))
    rerun = edit(make_record(), experiment(), lambda content: probe(content).update(envelope=None))
    left = make_record()
    assert errors_of(left, rerun)["layer.linear"].own == (2e-7, None)
    assert errors_of(left, rerun, measured=training)["layer.linear"].own == (2e-7, 3e-3)
    assert errors_of(left, rerun, measured=training)["head"].own == (2e-7, 2e-7)
    assert errors_of(left, make_record(own_error=5e-7), measured=training)["layer.linear"].own == (2e-7, 5e-7)
    gone = edit(training, without("probe"))
    assert errors_of(left, rerun, measured=gone)["layer.linear"].own == (2e-7, None)
    fewer = edit(training, taps_where(lambda tap: tap["name"] != "layer.linear"))
    assert errors_of(left, rerun, measured=fewer)["layer.linear"].own == (2e-7, None)


@pytest.mark.parametrize(("own", "alone"), [((0.6, None), True), ((None, 0.6), True), ((None, None), False)])
def test_an_experiment_needs_only_its_trainings_word_on_rounding(own: tuple[Any, Any], alone: bool) -> None:
    left = edit(make_record(), envelope(1, fp64_errors=own[0]))
    right = edit(make_record(), experiment(), envelope(1, fp64_errors=own[1]))
    assert math.isinf(errors_of(left, right)["layer.linear"].limit) is alone
    assert not math.isinf(errors_of(edit(left, experiment()), right)["layer.linear"].limit)


def test_the_limit_of_a_norm_follows_the_largest_norm_and_the_loss() -> None:
    made = edit(make_record(), *(at_step(step, gradient_norm=norm) for step, norm in enumerate((2.0, 8.0, 4.0, None))))
    made = edit(made, at_step(4, gradient_norm=16.0), at_step(5, gradient_norm=0.0))
    pair, own = Pair(made, make_record()), floor_of("norm", "fp32")
    wanted = [own * 2 ** (step / 9) * factor for step, factor in enumerate((8, 2, 4, 1, 1, 1))]
    assert [pair.norm_limit(step) for step in range(6)] == pytest.approx(wanted)
    wide = edit(make_record(), lambda content: probe(content)["envelope"].update(loss=[1e-2] * 6))
    assert Pair(wide, wide, steps=1).norm_limit(0) == pytest.approx(8e-2)
    assert Pair(wide, wide, steps=1, scale=0.5).norm_limit(0) == pytest.approx(4e-2)


# The first different bit.


@pytest.mark.parametrize("step", [1, 3, 4])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("field", "low", "high", "rung", "place"),
    [
        ("logits_sha256", "0" * 64, "f" * 64, "forward", "logits"),
        ("loss", 0.25, 0.75, "loss", "loss"),
        ("gradients_sha256", "0" * 64, "f" * 64, "gradient", "gradient"),
        ("gradient_norm_clipped", 0.25, 0.75, "clipped", "clipping"),
        ("weights_sha256", "0" * 64, "f" * 64, "optimizer", "optimizer"),
    ],
)
def test_the_first_different_bit_of_an_untapped_step_is_found_in_both_directions(  # noqa: PLR0917 - pytest's
    field: str, low: Any, high: Any, rung: str, place: str, swapped: bool, step: int
) -> None:
    later = at_step(5, weights_sha256="9" * 64)
    sides = [edit(make_record(), at_step(step, **{field: value})) for value in (low, high)]
    sides[1] = edit(sides[1], later)
    pair = Pair(*(reversed(sides) if swapped else sides))
    found = origin(pair)
    assert found is not None
    assert (found.rung, found.at.step, found.at.at) == (rung, step, place)
    assert found.suspicions[0].code == (
        "kernel" if rung in ("forward", "gradient") else found.rung.replace("clipped", "gradient")
    )
    assert (found.findings[0].observed, found.findings[0].limit) == (None, 0.0)
    # A rung that an experiment imposed is no evidence.
    imposed = origin(replace(pair, imposed=frozenset({rung})))
    place = (imposed.rung, imposed.at.step) if imposed else None
    assert place == (None if rung == "optimizer" else ("optimizer", 5))


@pytest.mark.parametrize("factor", [1 + 1e-7, 1 - 1e-7, 1 + 1e-3, 1 - 1e-3])
@pytest.mark.parametrize(
    ("field", "shows", "rung"),
    [
        ("loss_reference", "logits_sha256", "forward"),
        ("loss", None, "loss"),
        ("gradient_norm", "gradients_sha256", "gradient"),
        ("gradient_norm_clipped", None, "clipped"),
    ],
)
def test_a_scalar_within_rounding_suspects_a_kernel_and_beyond_it_a_formula(
    field: str, shows: str | None, rung: str, factor: float
) -> None:
    made = make_record()
    value = getattr(made.record.evidence.probe.steps[3], field)  # type: ignore[union-attr]
    changes = {field: value * factor} | ({shows: "e" * 64} if shows else {})
    found = origin(Pair(made, edit(made, at_step(3, **changes))))
    assert found is not None
    assert (found.rung, found.at.step) == (rung, 3)
    first = found.suspicions[0].code
    assert (first == "kernel") is (abs(factor - 1) < 1e-5)
    assert "nondeterminism" in {each.code for each in found.suspicions}


@pytest.mark.parametrize("size", [1e-6, 1e-2])
@pytest.mark.parametrize(("name", "step"), [("layer.linear", 0), ("layer.norm@2", 2), ("embed@1", 1), ("head@5", 5)])
def test_the_first_module_that_differs_is_the_place(name: str, step: int, size: float) -> None:
    found = origin(Pair(make_record(), make_record(noise={name: size})))
    assert found is not None
    module = name.partition("@")[0]
    assert (found.rung, found.at.step, found.at.at) == ("forward", step, module if step != 1 else "logits")


def test_an_evaluation_alone_is_the_last_place_to_differ() -> None:
    made = make_record()
    other = edit(made, evaluated(logits_sha256="9" * 64))
    for pair in (Pair(made, other), Pair(other, made)):
        found = origin(pair)
        assert found is not None
        assert (found.rung, found.at.stage, found.at.at) == ("evaluation", "evaluation", "logits")
        assert [each.code for each in found.suspicions] == ["evaluation", "nondeterminism"]
        assert origin(replace(pair, imposed=frozenset({"evaluation"}))) is None
    for gone in (edit(made, lambda content: probe(content).update(evaluation=None)),):
        assert origin(Pair(gone, other)) is origin(Pair(other, gone)) is None
    assert origin(Pair(made, made)) is None


def test_recorded_differences_that_explain_rounding_are_listed() -> None:
    def group(**settings: Any) -> Change:
        return lambda content: probe(content)["optimizer"][0]["settings"].update(settings)

    made = edit(make_record(), group(foreach=True, fused=False))
    other = edit(make_record(fingerprint=other_kernel()), group(foreach=False, capturable=True, lr=3.0))
    lines = keep(other_kernels(Pair(made, other, rounding=("a replay",))))
    assert lines[0] == "a replay"
    assert lines[1] == "cpu.isa: AVX2 → AVX512"
    assert lines[-3:] == (
        "optimizer.foreach: True → False", "optimizer.fused: False → None", "optimizer.capturable: None → True",
    )  # fmt: skip
    assert other_kernels(Pair(made, made)) == ()
    assert other_kernels(Pair(made, edit(made, without("model")))) == ()
    modules = make_record(modules={"layer.norm": "LayerNorm(eps=1e-3)"})
    assert len(keep(other_kernels(Pair(made, modules)))) == 3


# The order of rungs.


def item(rung: str, step: int | None, code: Any = "operator", at: str = "x", **fields: Any) -> Mismatch:
    place = Divergence(stage="forward", step=step, at=at)
    return Mismatch(rung, place, (Finding(check="c", outcome="drift"),), (Suspicion(code, "w"),), **fields)


@pytest.mark.parametrize(
    ("mismatch", "expected"),
    [
        (item("architecture", None), (0, 2)),
        (item("weights", 5), (0, 3)),
        (item("data", None), (math.inf, 0)),
        (item("data", None, at="tokenizer"), (0, 0)),
        (item("data", 3), (3, 0)),
        (item("data", 3, at="tokenizer"), (3, 0)),
        (item("forward", 4), (4, 6)),
        (item("loss", 4, since=1), (1, 7)),
        (item("loss", 4, since=0), (0, 7)),
        (item("evaluation", None), (math.inf, 12)),
    ],
)
def test_a_mismatch_has_its_position_by_step_and_rung(mismatch: Mismatch, expected: tuple[float, int]) -> None:
    assert position(mismatch) == expected


def test_rungs_of_one_step_are_in_the_order_of_consequence() -> None:
    keep(RUNGS)
    assert [position(item(rung, 2))[1] for rung in RUNGS[4:]] == list(range(4, 13))


def test_suspicions_are_reordered_and_dropped_by_code() -> None:
    many = replace(
        item("loss", 1), suspicions=tuple(Suspicion(code, "w") for code in ("kernel", "loss", "nondeterminism"))
    )  # type: ignore[arg-type]
    assert [each.code for each in with_kernel_last(many).suspicions] == ["loss", "nondeterminism", "kernel"]
    assert [each.code for each in without_nondeterminism(many).suspicions] == ["kernel", "loss"]
    alone = item("loss", 1, "nondeterminism")
    assert without_nondeterminism(alone) == alone
    assert with_kernel_last(item("loss", 1)) == item("loss", 1)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (("forward", "a"), ("forward", "a"), True), (("forward", "a"), ("forward", "b"), False),
        (("gradient", "a"), ("gradient", "b"), True), (("gradient", "a"), ("forward", "a"), False),
        (("optimizer", "b"), ("optimizer", "a"), True), (("evaluation", "b"), ("optimizer", "b"), False),
    ],
)  # fmt: skip
def test_rounding_is_a_trace_of_the_same_rung_and_module(
    left: tuple[str, str], right: tuple[str, str], same: bool
) -> None:
    assert is_same_place(item(left[0], 1, at=left[1]), item(right[0], 4, at=right[1])) is same


PLANS: dict[str, dict[str, Any]] = {
    "a loss that shows late": {"loss_factor": 1.01, "loss_shows_from": 3},
    "a loss and a gradient": {"loss_factor": 1.01, "gradient_factor_at": 1},
    "a late gradient": {"gradient_factor_at": 4},
    "a late update": {"update_factor": {3: 1.5}},
    "a rounded module, then a formula": {"noise": {"embed": 1e-7, "layer.norm@2": 1e-2}},
    "a formula, then another": {"noise": {"head@2": 1e-2, "embed@5": 1e-2}},
    "a decay": {"decay": 0.05},
    "rates and weights": {"rates": [3e-3] * STEPS, "weights_seed": 6},
    "labels, a module and the evaluation": {"labels": [1] * 30, "noise": {"embed": 1e-2}, "evaluation_mode": True},
    "a number format": {"dtype": "float16"},
    "fewer bits": {"noise": {"layer.linear@2": 1e-3}, "own_error": 1e-3},
    "a seed and a sign": {"seed": 4, "gradient_sign": -1.0},
}


@pytest.mark.parametrize("swapped", [False, True], ids=["candidate", "reference"])
@pytest.mark.parametrize("explained", [False, True], ids=["equal", "other"])
@pytest.mark.parametrize("name", PLANS)
def test_each_combination_of_faults_has_its_causes_in_order(name: str, explained: bool, swapped: bool) -> None:
    sides = [make_record(), make_record(**PLANS[name], fingerprint=other_kernel() if explained else {})]
    if swapped:
        sides.reverse()
    judgement = compare(sides[0], sides[1])
    assert judgement.verdict == "drift"
    ladder = walk(Pair(sides[0], sides[1]))
    assert ladder.mismatches
    assert not ladder.equal
    assert bool(ladder.rounding) is explained
    codes = [mismatch.suspicions[0].code for mismatch in ladder.mismatches]
    assert len(set(codes)) == len(codes)
    assert [position(each) for each in ladder.mismatches] == sorted(position(each) for each in ladder.mismatches)


# Rounds.


def test_a_reference_without_a_baseline_is_not_replaced_by_a_single_healthy_platform() -> None:
    off = {"gradient_factor": 1.25}
    records = {"a": named("a", **off), "b": named("b")}
    assert trusted_reference(records, "a", {"b": old("b")}) == "a"
    # Neither agrees with its own baseline: nothing speaks for the other.
    both = {"a": named("a", **off), "b": named("b", gradient_factor=1.5)}
    assert trusted_reference(both, "a", {name: old(name) for name in "ab"}) == "a"
    assert trusted_reference(records, "a", {name: old(name) for name in "ab"}) == "b"


@pytest.mark.parametrize("prefix", ["0", "z"])
def test_only_the_record_itself_is_no_baseline(prefix: str) -> None:
    records = {"a": named("a", gradient_factor=1.25), "b": named("b")}

    def before(name: str, record_id: str) -> LoadedRecord:
        made = named(name)
        return LoadedRecord(made.record.replace(record_id=record_id), made.folder, made.arrays)

    assert trusted_reference(records, "a", {name: before(name, f"{prefix}-{name}") for name in "ab"}) == "b"
    assert trusted_reference(records, "a", {name: before(name, name) for name in "ab"}) == "a"


def test_of_equal_groups_that_with_a_failed_selfcheck_is_not_right() -> None:
    noise = {"noise": {"layer.linear": 1e-3}, "own_error": 1e-3, "fingerprint": other_kernel()}
    records = {
        "a": named("a", **noise), "b": named("b", **noise), "c": checked("c", "drift"), "d": checked("d", "pass"),
    }  # fmt: skip
    # A failed selfcheck is a drift: `d` agrees with neither group, and `c` with `d` is no sounder than the reference.
    assert trusted_reference(records, "a", {}) == "a"
    records["c"] = checked("c", "unknown")
    assert trusted_reference(records, "a", {}) == "c"


def test_the_distance_from_fp64_is_the_worst_of_the_first_forward_pass() -> None:
    sides = {
        "a": edit(named("a"), envelope(1, fp64_errors=5e-3), envelope(5, fp64_errors=0.25)),
        "b": edit(named("b"), envelope(0, fp64_errors=None), envelope(3, fp64_errors=1e-3)),
        "c": edit(named("c"), lambda content: probe(content).update(envelope=None)),
    }
    assert [own_error(sides, *names) for names in ("ab", "ba", "bc", "cb", "aa")] == [5e-3, 1e-3, 1e-3, None, 5e-3]


def test_a_round_reports_the_last_accuracy_and_all_records() -> None:
    ends = [evaluation(4) | {"accuracy": 0.25}, evaluation(6) | {"accuracy": 0.5}, evaluation(8) | {"accuracy": 0.75}]
    learned: Change = lambda content: content["evidence"]["learn"].update(evaluations=ends)  # noqa: E731
    made = edit(whole(), in_spec("learn", evaluate_every=2), learned)
    name: Change = lambda content: content.update(record_id="r", platform="p")  # noqa: E731
    rerun = edit(made, lambda content: content.update(record_id="again"))
    result = judge_round({"p": edit(made, name)}, "p", {}, reruns={"p": rerun})["p"]
    assert (result.accuracy, result.samples_per_second, result.records) == (0.75, 10.0, ("r", "again"))
    assert judge_round({"p": named("p")}, "p", {})["p"].accuracy is None
    # Three evaluations where four are due: by itself it is invalid.
    assert result.verdict == "invalid"
    assert [finding.check for finding in result.findings] == ["learn.evaluations", "learn.evaluations"]


def test_a_rerun_on_a_different_machine_neither_confirms_nor_refutes() -> None:
    cores = {"cpu": {"model": "m", "isa": "AVX2", "num_cores": 64, "num_threads": 1}}

    def timed(record_id: str, rate: float, fingerprint: Any = None) -> LoadedRecord:
        speed = {
            "steps": 9,
            "warmup_steps": 1,
            "samples_per_second": rate,
            "tokens_per_second": 1.0,
            "step_seconds": 1.0,
        }
        made = make_record(fingerprint=fingerprint or {})
        return edit(
            made,
            lambda content: content["evidence"].update(speed=speed),
            lambda content: content.update(record_id=record_id),
        )

    def night(again: LoadedRecord | None) -> Any:
        reruns = {"left": again} if again else {}
        return judge_round({"left": timed("now", 50.0)}, "left", {"left": timed("then", 100.0)}, reruns=reruns)["left"]

    assert night(None).verdict == "inconclusive"
    assert night(timed("again", 50.0)).verdict == "drift"
    assert night(timed("again", 99.0)).verdict == "pass"
    other = night(timed("again", 50.0, cores))
    assert other.verdict == "inconclusive"
    assert [note.text for note in other.notes if note.code == "remark"] == [
        "the rerun ran on m, 64 cores, the training on m, 2 cores: it neither confirms nor refutes a drop"
    ]


@pytest.mark.parametrize(
    ("off", "count", "noted"),
    [("b", 2, []), ("b", 3, ["odd-one-out"]), ("d", 4, ["odd-one-out"]), ("", 3, []), ("a", 3, ["reference"])],
)
def test_a_single_different_platform_is_named_from_three_on(off: str, count: int, noted: list[str]) -> None:
    names = "abcd"[:count]
    bare: Change = lambda content: probe(content).update(envelope=None)  # noqa: E731
    records = {name: edit(named(name, **({"gradient_factor": 1.25} if name in off else {})), bare) for name in names}
    result = judge_round(records, "a", {})
    for name in names:
        assert [note.code for note in result[name].notes if note.code in ("odd-one-out", "reference")] == noted


def test_merged_judgements_keep_the_surest_cause_and_each_line_once() -> None:
    def part(outcome: Any, *causes: tuple[Any, Any], **fields: Any) -> Judgement:
        made = tuple(Cause(code=code, sure=sure, why=f"{code} {sure}") for code, sure in causes)
        return Judgement(verdict=outcome, causes=made, findings=(Finding(check="c", outcome=outcome),), **fields)

    first, second = (Divergence(stage="forward", step=step, at="m") for step in (3, 1))
    notes = [Note(text=text) for text in ("x", "y")]
    merged = keep(
        merge([
            part("pass", suspects=("s", "t"), notes=(notes[0],)),
            part("drift", ("loss", "confirmed"), ("rng", "unattributed"), ("kernel", "likely"), first_divergence=first),
            part("inconclusive", ("loss", "likely"), ("rng", "likely"), ("kernel", "likely"), suspects=("t", "u"),
                 first_divergence=second, notes=(notes[1], notes[0])),
        ])
    )  # fmt: skip
    assert merged.verdict == "drift"
    assert [(each.code, each.sure) for each in merged.causes] == [
        ("loss", "confirmed"), ("rng", "likely"), ("kernel", "likely"),
    ]  # fmt: skip
    assert merged.first_divergence == first
    assert (merged.suspects, merged.notes, len(merged.findings)) == (("s", "t", "u"), tuple(notes), 3)


# Notes of a comparison.


def test_a_curve_that_parts_on_equal_machines_has_every_separable_cause() -> None:
    def curve(**fields: Any) -> Change:
        return lambda content: content["evidence"]["learn"].update(fields)

    left = edit(whole(), curve(dropout=(0.1,), losses=[0.5] * 8))
    losses = [0.5] * 4 + [0.4] * 4
    both = edit(left, curve(dropout=(0.2,), losses=losses, weights_sha256="e" * 64))
    judgement = compare(left, both)
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == ["rng"]
    assert any(
        note.text == "the learning curves separate at step 4, after a bitwise equal probe" for note in judgement.notes
    )
    ended = edit(left, lambda content: content["evidence"]["learn"]["evaluations"][-1].update(accuracy=0.25))
    assert {cause.code for cause in compare(left, ended).causes} == {"evaluation"}


def test_a_file_of_the_tokenizer_and_a_manifest_that_differ_without_effect_are_noted() -> None:
    def changed(name: str) -> Change:
        return lambda content: content["evidence"]["data"].update({name: "9" * 64})

    made = make_record()
    for fields, codes in (
        (("tokenizer_sha256",), ["tokenizer"]),
        (("manifest_sha256",), ["manifest"]),
        (("manifest_sha256", "tokenizer_sha256"), ["manifest", "tokenizer"]),
    ):
        other = edit(made, *(changed(name) for name in fields))
        judgement = compare(made, other)
        assert (judgement.verdict, [note.code for note in judgement.notes]) == ("pass", [*codes, "equal-bits"])


def test_the_tensor_closest_to_its_limit_is_shown() -> None:
    made = make_record(noise={"layer.linear@2": 4e-7, "embed": 1e-8}, fingerprint=other_kernel())
    judgement = compare(make_record(), made)
    finding = next(each for each in judgement.findings if each.detail == "the tensor closest to its limit")
    assert isinstance(finding.observed, float)
    assert isinstance(finding.limit, float)
    assert 0 < finding.observed < finding.limit
    closest = max(
        (each for step in (0, 2, 5) for stage in ("forward", "gradient", "weight")
         for each in Pair(make_record(), made).errors(step, stage)),  # type: ignore[arg-type]
        key=lambda each: each.ratio,
    )  # fmt: skip
    assert finding.observed == closest.error
    assert np.isclose(finding.limit, closest.limit)
