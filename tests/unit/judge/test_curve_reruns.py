"""Reruns of both sides of a learning curve: what they confirm, and what they leave open."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.confirmation import Confirmation, Request
from plumbline.night.rounds.confirming import Case, absorb, wanted
from plumbline.records import LoadedRecord
from tests.said import failures_of, said

from .conftest import make_record, other_kernel
from .made_records import learned, windows
from .rung_records import END
from .test_causes import failed

CURVE = 8
LOSSES = tuple(0.7 - 0.01 * step for step in range(CURVE))
LOG = [f"{step:016x}" for step in range(CURVE)]
BATCHES = dict.fromkeys(("row_ids", "input_ids", "labels"), LOG)
OTHER_LOG = [*LOG[:3], "f" * 16, *LOG[4:]]


def curve(parted: int | None = None, **changes: Any) -> LoadedRecord:
    """Return a training of eight steps whose losses differ from step `parted` on."""
    losses = tuple(loss if parted is None or step < parted else loss + 1 for step, loss in enumerate(LOSSES))
    given = {
        "steps": CURVE,
        "learning_rates": [1e-3] * CURVE,
        "batches": BATCHES,
        "dropout": [0.1],
    } | changes
    return learned(0.85, losses, "a" if parted is None else "b", **given)


def ended(mark: str) -> list[list[Any]]:
    """Return the weights of a curve that ends with these."""
    return [[0, "0" * 16], [CURVE, mark * 16]]


def at_five(**changes: Any) -> dict[str, Any]:
    """Return the evidence of one window with these changes."""
    plain = {
        "outputs": [["embed", "a" * 16]], "gradients": [["embed.weight", "b" * 16]],
        "weights": [["embed.weight", "c" * 16]], "evaluation": END | {"step": 5},
    }  # fmt: skip
    return {"portable": windows(5, **(plain | changes))}


REFERENCE = curve(**at_five())
SHOWN = curve(5, **at_five(outputs=[["embed", "f" * 16]]))
"""A window shows an operator that computes something else."""


def rerun(side: LoadedRecord, request: Request, **plan: Any) -> LoadedRecord:
    """Return what the trainer leaves for an experiment on a learning curve."""
    experiment, learn, made = request.experiment, side.record.evidence.learn, make_record(**plan)
    assert learn is not None
    again = learn.replace(steps=experiment.steps, losses=learn.losses[: experiment.steps], portable=None)
    evidence = made.record.evidence.replace(probe=None, learn=again.to_json())
    record = made.record.replace(experiment=experiment.to_json(), evidence=evidence)
    return LoadedRecord(record, made.folder, made.arrays)


Answer = Callable[[Request], LoadedRecord | None]


def confirm(
    reference: LoadedRecord, candidate: LoadedRecord, answer: Answer, budget: int = 6
) -> tuple[Confirmation, list[Request]]:
    state, asked = begin(reference, candidate, compare(reference, candidate), budget), []
    assert state.curve is not None
    while (request := next_request(state)) is not None:
        asked.append(request)
        state = after_experiment(state, request, answer(request))
    return state, asked


def named(state: Confirmation) -> list[tuple[str, str]]:
    return [(cause.code, cause.sure) for cause in state.judgement.causes]


def tried(state: Confirmation) -> tuple[str, ...]:
    return tuple(said(state.judgement.causes[0].tried))


def repeating(reference: LoadedRecord, candidate: LoadedRecord, **plan: Any) -> Answer:
    """Answer so that each side repeats its bits, whatever value is restored."""
    return lambda request: rerun(reference if request.runs_on == "reference" else candidate, request, **plan)


BOTH = (
    "an unchanged rerun: bitwise equal",
    "an unchanged rerun of the reference: bitwise equal",
)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (at_five(outputs=[["embed", "f" * 16]]), "operator"),
        (at_five(loss="0x1p-2"), "loss"),
        (at_five(gradients=[["embed.weight", "f" * 16]]), "gradient"),
        (at_five(weights=[["embed.weight", "f" * 16]]), "optimizer"),
        ({"weights": [[0, "f" * 16], [CURVE, "b" * 16]]}, "weights.init"),
        ({"batches": BATCHES | {"row_ids": OTHER_LOG}}, "data.order"),
        ({"batches": BATCHES | {"labels": OTHER_LOG}}, "data.labels"),
        ({"batches": BATCHES | {"input_ids": OTHER_LOG}}, "tokenization"),
    ],
)
def test_a_difference_that_the_records_show_is_confirmed_if_both_sides_repeat_their_bits(
    changes: dict[str, Any], code: str
) -> None:
    reference, candidate = curve(**at_five()), curve(5, **(at_five() | changes))
    assert [(cause.code, cause.sure) for cause in compare(reference, candidate).causes] == [(code, "likely")]
    state, asked = confirm(reference, candidate, repeating(reference, candidate))
    assert (named(state), tried(state)) == ([(code, "confirmed")], BOTH)
    assert [request.runs_on for request in asked] == ["candidate", "reference"]
    for request in asked:
        assert (request.experiment.part, request.experiment.replays) == ("learn", ())
    assert len({request.experiment.experiment_id for request in asked}) == len(asked)


def test_a_curve_whose_records_show_nothing_stays_unattributed_with_what_was_tried() -> None:
    state, asked = confirm(curve(), curve(5), repeating(curve(), curve(5)))
    assert (named(state), tried(state), len(asked)) == ([("unattributed", "unattributed")], BOTH, 2)


@pytest.mark.parametrize(("parted", "steps"), [(0, 4), (1, 4), (3, 6), (4, 7), (5, 8), (7, 8), (None, 8)])
def test_a_rerun_ends_after_the_steps_that_show_the_difference(parted: int | None, steps: int) -> None:
    """Final weights that differ behind equal losses show at the end alone."""
    candidate = curve(parted) if parted is not None else curve(weights=ended("f"))
    state, asked = confirm(curve(), candidate, repeating(curve(), candidate))
    assert [request.experiment.steps for request in asked] == [steps, steps]
    code = {0: "operator", None: "optimizer"}.get(parted, "unattributed")
    assert named(state) == [(code, "unattributed" if code == "unattributed" else "likely")]


@pytest.mark.parametrize(
    ("fingerprint", "again", "cause", "text"),
    [
        ({}, 4, ("nondeterminism", "confirmed"), "the reference does not agree with itself"),
        (other_kernel(), 4, ("operator", "likely"), "ran on a different machine: cpu.isa: AVX2 → AVX512"),
        (other_kernel(), None, ("operator", "confirmed"), "rerun of the reference: bitwise equal"),
    ],
)
def test_a_reference_that_does_not_repeat_its_bits_accuses_nobody(
    fingerprint: dict[str, Any], again: int | None, cause: tuple[str, str], text: str
) -> None:
    def answer(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return rerun(curve(again), request, fingerprint=fingerprint)
        return rerun(SHOWN, request)

    state, _ = confirm(REFERENCE, SHOWN, answer)
    found = state.reference_cause or state.judgement.causes[0]
    assert (found.code, found.sure) == cause
    assert text in said(found.why) + " ".join(said(found.tried))
    is_reference = state.reference_cause is not None
    assert (state.judgement.verdict, state.judgement.causes == ()) == (
        ("inconclusive", True) if is_reference else ("drift", False)
    )


@pytest.mark.parametrize("how", ["lost", "lost twice", "failed"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rerun_that_gives_no_record_confirms_nothing(how: str, place: int) -> None:
    count, whole = itertools.count(), repeating(REFERENCE, SHOWN)

    def answer(request: Request) -> LoadedRecord | None:
        at = next(count)
        if how == "failed":
            return failed(whole(request)) if at == place else whole(request)
        return None if at in {place, *([place + 1] if how == "lost twice" else [])} else whole(request)

    state, asked = confirm(REFERENCE, SHOWN, answer)
    is_confirmed = how == "lost" or place == 2
    assert named(state) == [("operator", "confirmed" if is_confirmed else "likely")]
    if not is_confirmed:
        reason = {"failed": "too large", "lost twice": "no record was returned"}[how]
        assert any(why.startswith(reason) for why in failures_of(state.judgement.causes[0].tried))
    assert state.spent <= len(asked)


@pytest.mark.parametrize(("budget", "sure"), [(1, "likely"), (2, "confirmed"), (3, "confirmed")])
def test_a_budget_ends_the_reruns(budget: int, sure: str) -> None:
    state, asked = confirm(REFERENCE, SHOWN, repeating(REFERENCE, SHOWN), budget)
    assert (named(state), len(asked)) == ([("operator", sure)], min(budget, 2))


@pytest.mark.parametrize(
    ("reruns", "cause"),
    [
        ((4, 4), ("schedule", "likely")), ((4, 3), ("nondeterminism", "confirmed")),
        ((None,), ("nondeterminism", "confirmed")),
    ],
)  # fmt: skip
def test_a_curve_that_depends_on_the_parts_before_it_is_named_by_its_record(
    reruns: tuple[int | None, ...], cause: tuple[str, str]
) -> None:
    """Its reruns alone agree with each other, not with the training; chance would have given the reference's bits."""
    parted = iter(reruns)
    candidate = curve(5, learning_rates=[1e-3] * 5 + [2e-3] * 3)
    state, asked = confirm(curve(), candidate, lambda request: rerun(curve(next(parted)), request))
    assert (named(state), len(asked)) == ([cause], len(reruns))


def evaluation(record: LoadedRecord, step: int, **changes: Any) -> Any:
    return record.record.evidence.learn.evaluations[-1].replace(step=step, **changes).to_json()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "at", "is_named"),
    [
        ({"training_mode": True}, 4, True),
        ({"rows_sha256": "e" * 64}, 4, True),
        ({"logits_sha256": "e" * 64}, 4, True),
        ({"logits_sha256": "e" * 64}, 5, False),  # the weights after step 4 may differ
    ],
)
def test_an_evaluation_that_differs_by_itself_is_a_second_cause(
    changes: dict[str, Any], at: int, is_named: bool
) -> None:
    reference = curve(evaluations=[evaluation(curve(), at)], **at_five())
    wrong = evaluation(curve(), at, **changes)
    candidate = curve(5, evaluations=[wrong], **at_five(outputs=[["embed", "f" * 16]]))
    state, _ = confirm(reference, candidate, repeating(reference, candidate), budget=10)
    assert named(state) == [("operator", "confirmed"), *([("evaluation", "confirmed")] if is_named else [])]


@pytest.mark.parametrize("heals", [True, False])
def test_an_evaluation_alone_is_tested_by_its_definition_and_by_no_rerun_of_the_reference(heals: bool) -> None:
    reference = curve(evaluations=[evaluation(curve(), CURVE)])
    candidate = curve(evaluations=[evaluation(curve(), CURVE, accuracy=0.5)])

    def answer(request: Request) -> LoadedRecord:
        return rerun(reference if request.experiment.replays and heals else candidate, request)

    state, asked = confirm(reference, candidate, answer)
    assert [[replay.stage for replay in request.experiment.replays] for request in asked] == [[], ["evaluation"]]
    assert {request.runs_on for request in asked} == {"candidate"}
    assert named(state) == [("evaluation", "confirmed" if heals else "likely")]


def test_a_round_sends_the_second_rerun_to_the_reference() -> None:
    state = begin(REFERENCE, SHOWN, compare(REFERENCE, SHOWN), 6)
    case = Case("azure", "unit", "aws", state)
    ((_, first, assignment),) = wanted([case])
    assert assignment.platform == "azure"
    case = replace(case, confirmation=after_experiment(state, first, rerun(SHOWN, first)))
    ((_, second, assignment),) = wanted([case])
    assert (assignment.platform, second.experiment.steps) == ("aws", first.experiment.steps)
    # A baseline has no platform: the experiment is lost, and the round ends.
    alone = replace(case, reference=None)
    assert wanted([alone]) == ()
    while next_request(alone.confirmation) is not None:
        (alone,) = absorb([alone], {}, {})
    assert named(alone.confirmation) == [("operator", "likely")]


def test_a_tested_cause_has_the_suspects_of_the_judged_records_and_none_of_its_reruns() -> None:
    state, _ = confirm(REFERENCE, SHOWN, repeating(REFERENCE, SHOWN, fingerprint=other_kernel()))
    assert named(state) == [("operator", "confirmed")]
    assert [cause.suspects for cause in state.judgement.causes] == [()]
