"""Each missing item of a record is counted, and a record that cannot be judged says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.compared import Comparisons
from plumbline.judge.whole import missing_evidence, stands_alone, unequal_evidence
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_array
from plumbline.schema.fact import Fact
from plumbline.schema.portable_parts import curve_places
from plumbline.schema.verdict import Finding
from tests.said import said

from .conftest import EVALUATION_ROWS, STEPS, cut_to, make_record
from .made_records import (
    Change,
    Content,
    at_step,
    edit,
    evaluated,
    evaluation,
    experiment,
    in_spec,
    probe,
    taps_where,
    whole,
    windows,
    without,
)

# Completeness.


def lacks(made: LoadedRecord, side: str = "candidate") -> list[tuple[Any, ...]]:
    found = list(missing_evidence(made, side))
    assert all(isinstance(finding.detail, Fact) and finding.detail.values["side"] == side for finding in found)
    return [(finding.check, finding.outcome, finding.observed, finding.limit) for finding in found]


def problems(reference: LoadedRecord, candidate: LoadedRecord) -> list[Finding]:
    return list(Comparisons().of(reference, candidate).problems)


def first(num: int, **fields: Any) -> Change:
    """Keep the first windows of the probe."""
    made = make_record(has_windows=True).record.model_dump()["evidence"]["probe"]["portable"]
    return lambda content: probe(content).update(portable={**made, "windows": made["windows"][:num], **fields})


def no_windows(content: Content) -> None:
    probe(content)["portable"] = None


def shards(*sizes: int) -> Change:
    def change(content: Content) -> None:
        trained = list(content["evidence"]["data"]["shards"])[:3]
        parts = [{**trained[0], "key": f"evaluation/{place}.parquet", "num_rows": n} for place, n in enumerate(sizes)]
        content["evidence"]["data"]["shards"] = [*trained, *parts]
        read = 24 + min(sum(sizes) or EVALUATION_ROWS, EVALUATION_ROWS)
        content["evidence"]["data"]["num_rows"] = read
        content["arrays"]["rows"] = {name: rows[:read] for name, rows in content["arrays"]["rows"].items()}

    return change


def five_steps(content: Content) -> None:
    cut_to(probe(content), 5)
    content["arrays"]["batches"] = {name: steps[:5] for name, steps in content["arrays"]["batches"].items()}


LACKING: dict[str, tuple[tuple[Change, ...], list[tuple[Any, ...]]]] = {
    "nothing": ((), []),
    "data": ((without("data"),), [("data.evidence", "inconclusive", None, None)]),
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
    "a window that was not asked for": ((first(1),), []),
    "windows": (
        (in_spec("probe", portable_steps=2), no_windows), [("probe.portable", "inconclusive", None, None)],
    ),
    "lost windows": (
        (in_spec("probe", portable_steps=2), lambda c: probe(c).update(portable={"windows": [], "lost": "memory"})),
        [],
    ),
    "all windows": ((in_spec("probe", portable_steps=2), first(2)), []),
    "windows of which none was repeated": (
        (in_spec("probe", portable_steps=2), first(2, repeated=None)),
        [("probe.portable", "inconclusive", None, None)],
    ),
    "half of the windows": (
        (in_spec("probe", portable_steps=2), first(1)), [("probe.portable", "invalid", 1, 2)],
    ),
    "windows that a limit of time has ended": (
        (in_spec("probe", portable_steps=2, portable_seconds=60), first(1)), [],
    ),
    "no window within its time": (
        (in_spec("probe", portable_steps=2, portable_seconds=60), first(0)),
        [("probe.portable", "inconclusive", None, None)],
    ),
    "more windows": ((in_spec("probe", portable_steps=1), first(2)), [("probe.portable", "invalid", 2, 1)]),
    "fewer windows than steps of the probe": (
        (in_spec("probe", portable_steps=99), first(2)), [("probe.portable", "invalid", 2, STEPS)],
    ),
    "windows that were lost": ((in_spec("probe", portable_steps=2), first(0, lost="a kernel")), []),
    "a gradient norm, as loss scaling skipped the step": (
        (in_spec("probe", precision="fp16"), at_step(3, gradient_norm=None, loss_scale=2.0)), [],
    ),
    "a gradient norm, beside a loss scale in fp32": (
        (at_step(3, gradient_norm=None, loss_scale=1.0),), [("probe.steps", "inconclusive", None, None)],
    ),
    "a gradient norm": ((at_step(3, gradient_norm=None),), [("probe.steps", "inconclusive", None, None)]),
    "parts of two steps": (
        (at_step(1, generators={}), at_step(4, weights=None)), [("probe.steps", "inconclusive", None, None)],
    ),
    "two batch fields": (
        (lambda c: [c["arrays"]["batches"].pop(name) for name in ("labels", "input_ids")],),
        [("probe.batches", "invalid", None, None)],
    ),
    "states of two steps": (
        (lambda c: [c["arrays"]["state"].pop(f"rng/{step}") for step in (2, 4)],), [("probe.state", "invalid", 4, 6)],
    ),
    "states of a step": ((lambda c: c["arrays"]["state"].pop("rng/3"),), [("probe.state", "invalid", 5, 6)]),
    "forward taps": (
        (taps_where(lambda tap: tap["stage"] != "forward"),), [("probe.taps", "inconclusive", 0, 1)],
    ),
    "gradients of a middle step": (
        (taps_where(lambda tap: (tap["step"], tap["stage"]) != (2, "gradient")),), [("probe.taps", "invalid", 0, None)],
    ),
    "weights of all tap steps": (
        (taps_where(lambda tap: tap["stage"] != "optimizer"),), [("probe.taps", "invalid", 0, None)],
    ),
    "two of three weights": (
        (taps_where(lambda tap: tap["stage"] != "optimizer" or tap["name"] == "head.weight"),),
        [("probe.taps", "invalid", 1, 3)],
    ),
    "one of three weights at the last step": (
        (taps_where(lambda tap: (tap["step"], tap["stage"], tap["name"]) != (5, "optimizer", "embed.weight")),),
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
    "the last weights of the curve": (
        (lambda c: c["evidence"]["learn"].update(weights=[]),),
        [(f"learn.{check}", "inconclusive", None, None) for check in ("weights", "log")],
    ),
    "gradients of a step": ((at_step(3, gradients=None),), [("probe.log", "invalid", 5, 6)]),
    "learning rates": ((lambda c: probe(c).update(learning_rates=()),), [("probe.log", "inconclusive", None, None)]),
    "labels of a step": ((at_step(3, batch={"labels": None}),), [("probe.log", "invalid", 5, 6)]),
    "a step": ((five_steps,), [("probe.steps", "invalid", 5, 6)]),
    "a row that it read": (
        (lambda c: c["arrays"].update(rows={name: rows[:-1] for name, rows in c["arrays"]["rows"].items()}),),
        [("data.rows", "invalid", 29, 30)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("name", LACKING)
def test_each_missing_item_is_counted(name: str, side: str) -> None:
    changes, expected = LACKING[name]
    made = edit(whole(), *changes)
    assert lacks(made, side) == expected
    assert stands_alone(made) is (not expected)
    pair = (made, made) if side == "reference" else (whole(), made)
    if expected:
        assert compare(*pair).verdict in ("inconclusive", "invalid")


def test_a_record_without_parts_lacks_each_of_them() -> None:
    made = whole()
    assert lacks(LoadedRecord(made.record, made.folder)) == [
        ("probe.batches", "invalid", None, None), ("probe.state", "invalid", 0, 6),
        ("probe.sketches", "invalid", None, None), ("data.rows", "invalid", 0, 30),
        *[("evaluation.part", "invalid", 0, 6)] * 3,
    ]  # fmt: skip


def test_a_curve_whose_last_step_is_no_multiple_is_evaluated_there_as_well() -> None:
    changes = (in_spec("learn", evaluate_every=3), lambda c: c["evidence"]["learn"].update(evaluations=()))
    assert lacks(edit(whole(), *changes)) == [("learn.evaluations", "invalid", 0, 3)]
    due = [evaluation(step) for step in (3, 6, 8)]
    assert lacks(edit(whole(), changes[0], lambda c: c["evidence"]["learn"].update(evaluations=due))) == []


@pytest.mark.parametrize(
    ("sizes", "rows", "bad"),
    [
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

    def of_rows(content: Content) -> None:
        part = {name: np.resize(array, (rows, *array.shape[1:])) for name, array in PART.items()}
        content["arrays"]["evaluation"] = part
        digests = {"rows_sha256": "row_ids", "predictions_sha256": "predictions", "logits_sha256": "logits"}
        evaluated(num_rows=rows, **{name: digest_array(part[key]) for name, key in digests.items()})(content)
        content["evidence"]["learn"].update(evaluations=ends)

    made = edit(whole(), shards(*sizes), of_rows)
    due = min(EVALUATION_ROWS, sum(sizes))
    checks = ["probe.evaluation", "learn.evaluation", "learn.evaluation"]
    assert lacks(made, "reference") == ([(check, "invalid", rows, due) for check in checks] if bad else [])
    assert lacks(made) == []


PART = make_record().arrays["evaluation"]


def of_shards(count: int) -> Change:
    """Keep the first shards of the dataset: all but the last are of training rows."""

    def change(content: Content) -> None:
        content["evidence"]["data"].update(shards=content["evidence"]["data"]["shards"][:count])

    return change


@pytest.mark.parametrize("rows", [1, EVALUATION_ROWS])
def test_a_dataset_without_shards_has_no_rows_to_evaluate(rows: int) -> None:
    def ends(content: Content) -> None:
        content["evidence"]["learn"].update(evaluations=[evaluation(4, rows), evaluation(8, rows)])

    unnamed = ("data.shards", "invalid", None, None)
    assert lacks(edit(whole(), of_shards(0), ends)) == [unnamed]
    for kept_shards in (0, 3):
        made = edit(whole(), of_shards(kept_shards), ends)
        assert lacks(made, "reference") == [unnamed] * (3 if kept_shards else 4)
        assert not stands_alone(made)


@pytest.mark.parametrize(("count", "is_unnamed"), [(9_999, True), (10_000, False)])
def test_only_a_record_that_may_name_its_first_shards_alone_may_name_none_to_evaluate(
    count: int, is_unnamed: bool
) -> None:
    def many(content: Content) -> None:
        first, *_ = content["evidence"]["data"]["shards"]
        content["evidence"]["data"].update(
            shards=[{**first, "key": f"train/{place}.parquet"} for place in range(count)]
        )

    checks = {check for check, *_ in lacks(edit(whole(), many), "reference")}
    assert ("data.shards" in checks) == is_unnamed


def test_windows_of_a_curve_are_due_where_its_epochs_begin_and_at_its_ends_where_nothing_shows_that() -> None:
    """The 24 rows to train on are six steps; a record that names its first shards alone does not say so."""
    long = edit(whole(), in_spec("learn", steps=500))
    due = curve_places(long.record.spec, 6)
    assert {0, 6, 499} < {*due} != {*curve_places(long.record.spec, None)}

    def lacking(*steps: int, more: Change = lambda _: None) -> bool:
        found: Change = lambda content: content["evidence"]["learn"].update(portable=windows(*steps))  # noqa: E731
        return "learn.portable" in {check for check, *_ in lacks(edit(long, found, more))}

    def unnamed(content: Content) -> None:
        first, *_ = content["evidence"]["data"]["shards"]
        content["evidence"]["data"].update(
            shards=[first | {"key": f"train/{place}.parquet"} for place in range(10_000)]
        )

    assert not lacking(*due)
    assert lacking(0, 7, *due[2:])
    assert lacking(0, 499)
    assert not lacking(0, 499, more=unnamed)
    assert lacking(0, 498, more=unnamed)


def test_an_experiment_is_asked_for_its_own_steps_only() -> None:
    bare = (without("learn", "speed"),)
    assert lacks(edit(whole(), experiment(), *bare)) == []
    assert lacks(edit(whole(), experiment(steps=5), *bare))[0] == ("probe.steps", "invalid", 6, 5)
    assert lacks(edit(whole(), experiment(), without("probe"))) == [("probe.evidence", "inconclusive", None, None)]
    assert lacks(edit(whole(), experiment(part="learn", steps=8), without("probe", "speed"))) == []
    assert lacks(edit(whole(), experiment(part="learn", steps=7), without("probe", "speed"))) == [
        ("learn.steps", "invalid", 8, 7)
    ]
    assert lacks(edit(whole(), experiment(part="learn"), without("learn"))) == [
        ("learn.evidence", "inconclusive", None, None),
    ]
    # An experiment records windows and an evaluation where it is asked for them.
    gone = (in_spec("probe", portable_steps=2), no_windows)
    assert lacks(edit(whole(), experiment(), *gone)) == []
    assert lacks(edit(whole(), experiment(portable=True), *gone)) == [("probe.portable", "inconclusive", None, None)]
    unevaluated: Change = lambda content: probe(content).update(evaluation=None)  # noqa: E731
    assert lacks(edit(whole(), experiment(), unevaluated)) == [("probe.evaluation", "inconclusive", None, None)]


def unequal(left: LoadedRecord, right: LoadedRecord) -> list[tuple[Any, ...]]:
    found = [finding for _, finding in unequal_evidence(left, right)]
    return [(finding.check, finding.observed, finding.limit) for finding in found]


def test_taps_that_only_one_architecture_has_are_not_compared() -> None:
    fewer = taps_where(lambda tap: (tap["step"], tap["name"]) != (2, "layer.linear.weight"))
    assert unequal(whole(), edit(whole(), fewer)) == [("probe.taps", 28, 30)]
    assert unequal(edit(whole(), fewer), whole()) == [("probe.taps", 28, 30)]
    assert unequal(whole(), edit(whole(), fewer, without_linear)) == []
    assert unequal(whole(), edit(whole(), fewer, without("model"))) == [("probe.taps", 28, 30)]


def without_linear(content: Content) -> None:
    model = content["evidence"]["model"]
    model["parameters"] = [each for each in model["parameters"] if each["name"] != "layer.linear.weight"]


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
    (finding,) = problems(*pair)
    assert (finding.check, finding.outcome, finding.observed, finding.limit) == (
        "record.exit", outcome, observed, "completed",
    )  # fmt: skip
    assert isinstance(finding.detail, Fact)
    values = finding.detail.values
    assert values["side"] == ("reference", "candidate")[side]
    assert f"failed{said(values['where'])}: {values['message']}" == detail


@pytest.mark.parametrize("side", [0, 1])
def test_a_loss_that_is_missing_is_invalid_at_its_first_step(side: int) -> None:
    pair = [whole(), whole()]
    pair[side] = edit(
        pair[side], at_step(2, loss=None), at_step(4, loss=None),
        lambda content: content["evidence"]["learn"].update(losses=[0.5] * 5 + [None] + [0.5] * 2),
    )  # fmt: skip
    found = problems(*pair)
    assert [(finding.check, finding.outcome) for finding in found] == [
        ("probe.loss", "invalid"),
        ("learn.loss", "invalid"),
    ]
    assert said(found[0].metric) == "loss at step 2"
    assert all(("reference", "candidate")[side] in said(finding.detail) for finding in found)
    assert not stands_alone(pair[side])
    assert stands_alone(pair[1 - side])


@pytest.mark.parametrize("side", [0, 1])
def test_an_experiment_is_not_compared_with_a_training(side: int) -> None:
    pair = [whole(), whole()]
    pair[side] = edit(pair[side], experiment())
    assert [finding.check for finding in problems(*pair)] == ["record.experiment"]
    assert not problems(pair[side], pair[side])
    assert compare(pair[0], pair[1]).verdict == "invalid"


def test_two_specs_are_named_with_their_digests() -> None:
    left, right = whole(), make_record()
    finding, *_ = problems(left, right)
    assert (finding.observed, finding.limit) == (right.record.spec_sha256, left.record.spec_sha256)
