"""Traces of a learning curve: what they name, what they confirm, and what they leave open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import Confirmation, Request
from plumbline.judge.curves import Window, earlier_window, first_window
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.learning import learning
from plumbline.night.rounds.confirming import Case, absorb, wanted
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import LearnEvidence
from tests.kept_results import keep, kept
from tests.said import said

from .conftest import STEPS, make_record, other_kernel
from .made_records import learned

compare = kept(compare)
earlier_window = kept(earlier_window)
first_window = kept(first_window)
learning = kept(learning)

CURVE = 8
LOSSES = tuple(0.7 - 0.01 * step for step in range(CURVE))
WEIGHTS = tuple(digest_json(step)[:16] for step in range(CURVE + 1))


def curve(parted: int | None = None, **changes: Any) -> LoadedRecord:
    """Return a training of eight steps whose losses differ from step `parted` on."""
    losses = tuple(loss if parted is None or step < parted else loss + 1 for step, loss in enumerate(LOSSES))
    given = {
        "steps": CURVE,
        "learning_rates": [1e-3] * CURVE,
        "batches": [f"{step:016x}" for step in range(CURVE)],
        "dropout": [0.1],
    } | changes
    return learned(0.85, losses, "a" if parted is None else "b", **given)


def separated(step: int, weights: tuple[str, ...] = WEIGHTS) -> tuple[str, ...]:
    """Return checksums of which those before `step` and later differ from the reference's."""
    return tuple(digest_json([mark, "x"])[:16] if place >= step else mark for place, mark in enumerate(weights))


def trace(
    side: LoadedRecord, request: Request, weights: tuple[str, ...] = WEIGHTS, draws: Any = (), **plan: Any
) -> LoadedRecord:
    """Return what the trainer leaves for an experiment: the curve, and the probe's evidence of a trace's steps."""
    experiment, learn = request.experiment, side.record.evidence.learn
    assert learn is not None
    if experiment.trace is None:
        return untraced(side, request, **plan)
    first = experiment.trace or 0
    count = experiment.steps - first
    made = make_record(tap_steps=tuple(range(STEPS)), **plan)
    probe = made.record.evidence.probe
    assert probe is not None
    taps = tuple(tap for tap in probe.taps if tap.step < count)
    kept = [place for place, tap in enumerate(probe.taps) if tap.step < count]
    evidence = made.record.evidence.replace(
        probe=probe.replace(steps=probe.steps[:count], taps=taps, evaluation=None),
        learn=learn.replace(steps=experiment.steps, losses=learn.losses[: experiment.steps]),
        trace={"first": first, "weights": weights[: experiment.steps + 1], "draws": draws},
    )
    arrays = made.arrays | {
        "batches": {name: values[:count] for name, values in made.arrays["batches"].items()},
        "sketches": {"sketch": made.arrays["sketches"]["sketch"][kept]},
    }
    record = made.record.replace(
        experiment=experiment.to_json(), evidence=evidence.to_json(), record_id=f"{request.runs_on}-trace"
    )
    return LoadedRecord(record, made.folder, arrays)


def untraced(side: LoadedRecord, request: Request, **plan: Any) -> LoadedRecord:
    """Return what the trainer leaves for an experiment without a trace."""
    experiment, learn, made = request.experiment, side.record.evidence.learn, make_record(**plan)
    assert learn is not None
    curve = learn.replace(steps=experiment.steps, losses=learn.losses[: experiment.steps])
    evidence = made.record.evidence.replace(probe=None, learn=curve.to_json())
    record = made.record.replace(experiment=experiment.to_json(), evidence=evidence)
    return LoadedRecord(record, made.folder, made.arrays)


Answer = Callable[[Request], LoadedRecord | None]


def confirm(
    reference: LoadedRecord, candidate: LoadedRecord, answer: Answer, budget: int = 6
) -> tuple[Confirmation, list[Request]]:
    state, asked = Confirmation.begin(reference, candidate, compare(reference, candidate), budget), []
    assert state.window is not None
    while (request := state.next()) is not None:
        asked.append(keep(request))
        state = state.absorb(request, answer(request))
    keep(state.judgement)
    return state, asked


def named(state: Confirmation) -> list[tuple[str, str]]:
    return [(cause.code, cause.sure) for cause in state.judgement.causes]


def faulty(candidate: LoadedRecord, weights: tuple[str, ...] = WEIGHTS, **plan: Any) -> Answer:
    """Answer with traces of which the candidate's has the changes of `plan`; restored values bring back the bits."""

    def answer(request: Request) -> LoadedRecord:
        if request.runs_on == "reference" or request.experiment.replays:
            return trace(curve(), request)
        return trace(candidate, request, weights, **plan)

    return answer


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ({"labels": [1] * 30}, "data.labels"),
        ({"order": [23, *range(1, 24)]}, "data.order"),
        ({"weights_seed": 6}, "weights.init"),
        ({"noise": {"layer.norm@1": 0.05}}, "operator"),
        ({"dtype": "bfloat16"}, "precision"),
        ({"loss_factor": 1.1}, "loss"),
        ({"gradient_factor": 2.0}, "gradient"),
        ({"update_factor": {1: 0.5}}, "optimizer"),
        ({"seed": 2}, "rng"),
    ],
)
def test_two_traces_name_and_confirm_what_the_probe_does_not_show(plan: dict[str, Any], code: str) -> None:
    candidate = curve(5)
    assert [cause.code for cause in compare(curve(), candidate).causes] == ["unattributed"]
    state, asked = confirm(curve(), candidate, faulty(candidate, **plan), budget=10)
    assert named(state) == [(code, "confirmed")]
    assert "in the learning curve, counted from its step 4 as 0: " in said(state.judgement.causes[0].why)
    assert [request.runs_on for request in asked[:2]] == ["candidate", "reference"]
    for request in asked:
        assert (request.experiment.part, request.experiment.trace) == ("learn", 4)
        assert 4 < request.experiment.steps <= CURVE
    assert len({request.experiment.experiment_id for request in asked}) == len(asked)


def test_a_cause_that_no_experiment_could_test_is_likely() -> None:
    candidate = curve(5)
    state, asked = confirm(curve(), candidate, faulty(candidate, gradient_factor=2.0), budget=2)
    assert named(state) == [("gradient", "likely")]
    assert len(asked) == 2


def test_a_restored_value_that_changes_nothing_confirms_nothing() -> None:
    candidate, plan = curve(5), {"update_factor": {1: 0.5}}

    def answer(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return trace(curve(), request)
        return trace(candidate, request, **plan)

    state, _ = confirm(curve(), candidate, answer, budget=20)
    assert named(state) == [("optimizer", "likely")]
    tried = " ".join(said(state.judgement.causes[0].tried))
    assert "the reference's optimizer state" in tried
    assert "by AdamW's definition" in tried


def test_weights_that_separate_before_the_losses_move_the_trace() -> None:
    candidate = curve(6)
    answer = faulty(candidate, separated(3), update_factor={0: 0.5})
    state, asked = confirm(curve(), candidate, answer, budget=10)
    assert [(request.runs_on, request.experiment.trace) for request in asked[:4]] == [
        ("candidate", 5), ("reference", 5), ("reference", 2), ("candidate", 2),
    ]  # fmt: skip
    assert named(state) == [("optimizer", "confirmed")]


def test_a_curve_that_starts_from_different_weights_is_traced_from_its_start() -> None:
    candidate = curve(6)
    state, asked = confirm(curve(), candidate, faulty(candidate, separated(0), weights_seed=6), budget=10)
    assert asked[-1].experiment.trace == 0
    assert named(state) == [("weights.init", "confirmed")]


def without_taps(made: LoadedRecord) -> LoadedRecord:
    probe = made.record.evidence.probe
    assert probe is not None
    evidence = made.record.evidence.replace(probe=probe.replace(taps=probe.taps[:1]))
    sketches = {"sketch": made.arrays["sketches"]["sketch"][:1]}
    return LoadedRecord(made.record.replace(evidence=evidence), made.folder, made.arrays | {"sketches": sketches})


def without_trail(made: LoadedRecord) -> LoadedRecord:
    changed = made.record.evidence.replace(trace={"first": 4, "weights": []})
    return LoadedRecord(made.record.replace(evidence=changed), made.folder, made.arrays)


def of_other_steps(made: LoadedRecord) -> LoadedRecord:
    changed = made.record.evidence.replace(trace={"first": 3, "weights": WEIGHTS})
    return LoadedRecord(made.record.replace(evidence=changed), made.folder, made.arrays)


def without_probe(made: LoadedRecord) -> LoadedRecord:
    return LoadedRecord(
        made.record.replace(evidence=made.record.evidence.replace(probe=None)), made.folder, made.arrays
    )


@pytest.mark.parametrize("side", ["candidate", "reference"])
@pytest.mark.parametrize("spoil", [without_taps, without_trail, of_other_steps, without_probe])
def test_an_incomplete_trace_names_nothing(side: str, spoil: Callable[[LoadedRecord], LoadedRecord]) -> None:
    candidate = curve(5)
    whole = faulty(candidate, gradient_factor=2.0)

    def answer(request: Request) -> LoadedRecord:
        made = whole(request)
        assert made is not None
        return spoil(made) if request.runs_on == side else made

    state, _ = confirm(curve(), candidate, answer)
    assert named(state) == [("unattributed", "unattributed")]
    lost = "could not be run: the experiment has no gradient taps"
    expected = lost if spoil is without_taps else f"no complete trace of the {side}"
    assert expected in said(state.judgement.causes[0].tried)[-1]


def test_a_lost_trace_of_the_reference_names_nothing() -> None:
    """A baseline has no platform that could trace it."""
    candidate = curve(5)
    whole = faulty(candidate, gradient_factor=2.0)
    state, asked = confirm(curve(), candidate, lambda r: None if r.runs_on == "reference" else whole(r))
    assert named(state) == [("unattributed", "unattributed")]
    assert [request.runs_on for request in asked] == ["candidate", "reference", "reference"]


@pytest.mark.parametrize(
    ("fingerprint", "code"), [({}, ("nondeterminism", "confirmed")), (other_kernel(), ("unattributed", "unattributed"))]
)
def test_a_reference_that_does_not_repeat_its_bits_is_no_measure(
    fingerprint: dict[str, Any], code: tuple[str, str]
) -> None:
    candidate = curve(5)

    def answer(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return trace(curve(4), request, fingerprint=fingerprint)
        return trace(candidate, request)

    state, _ = confirm(curve(), candidate, answer)
    cause = state.reference_cause or state.judgement.causes[0]
    assert (cause.code, cause.sure) == code
    assert "reference" in said(cause.why) + " ".join(said(cause.tried))


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
    state, asked = confirm(
        curve(), curve(5, learning_rates=[1e-3] * 5 + [2e-3] * 3), lambda request: trace(curve(next(parted)), request)
    )
    assert (named(state), len(asked)) == ([cause], len(reruns))


def test_traces_that_agree_leave_the_cause_open() -> None:
    candidate = curve(5)
    state, _ = confirm(curve(), candidate, faulty(candidate))
    assert named(state) == [("unattributed", "unattributed")]
    assert said(state.judgement.causes[0].tried)[-1] == "the traces agree"


def draw(given: str, dropped: str) -> list[dict[str, Any]]:
    return [
        {"step": step, "name": "layer.norm", "input_sha256": given * 64, "dropped_sha256": dropped * 64}
        for step in range(4)
    ]


@pytest.mark.parametrize(
    ("given", "dropped", "code"), [("a", "b", "rng"), ("b", "b", "operator"), ("a", "a", "operator")]
)
def test_a_dropout_is_blamed_only_for_a_different_mask_of_the_same_input(given: str, dropped: str, code: str) -> None:
    candidate = curve(5)

    def answer(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return trace(curve(), request, draws=draw("a", "a"))
        return trace(candidate, request, draws=draw(given, dropped), noise={"layer.norm@1": 0.05})

    state, _ = confirm(curve(), candidate, answer, budget=2)
    assert named(state) == [(code, "likely")]


def test_a_dropout_that_only_one_side_calls_is_a_different_draw() -> None:
    candidate = curve(5)

    def answer(request: Request) -> LoadedRecord:
        inner = [entry | {"name": "layer.norm.dropout"} for entry in draw("a", "a")]
        if request.runs_on == "reference":
            return trace(curve(), request, draws=inner)
        return trace(candidate, request, noise={"layer.norm@1": 0.05})

    assert named(confirm(curve(), candidate, answer, budget=2)[0]) == [("rng", "likely")]


@pytest.mark.parametrize(
    ("learn", "code"),
    [
        ({"checkpoint_every": 5, "evaluate_every": 8}, "optimizer"),
        ({"checkpoint_every": 8, "evaluate_every": 5}, "evaluation"),
        ({"checkpoint_every": 5, "evaluate_every": 5}, "optimizer"),
        (None, "optimizer"),
    ],
)
def test_weights_that_change_between_two_steps_are_no_operator(learn: dict[str, int] | None, code: str) -> None:
    def with_spec(record: LoadedRecord) -> LoadedRecord:
        spec = record.record.spec.replace(learn=learn and {"steps": CURVE, **learn})
        curve = record.record.evidence.learn
        assert curve is not None
        due = [step for step in (5, 8) if learn and (step % learn["evaluate_every"] == 0 or step == CURVE)]
        ends = [curve.evaluations[0].replace(step=step).to_json() for step in due if step <= curve.steps]
        log = [f"{step:016x}" for step in range(curve.steps)]
        whole = curve.replace(
            evaluations=ends, batches=log, rows=log, labels=log, learning_rates=[1e-3] * curve.steps,
            start_sha256="f" * 64,
        )  # fmt: skip
        evidence = record.record.evidence.model_copy(update={"learn": whole})
        changed = record.record.model_copy(update={"spec": spec, "evidence": evidence})
        return LoadedRecord(changed, record.folder, record.arrays)

    reference, candidate = with_spec(curve()), with_spec(curve(5))

    def answer(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return with_spec(trace(reference, request))
        if request.experiment.replays:
            assert [(replay.rung, replay.step) for replay in request.experiment.replays] == [("weights", 1)]
            return with_spec(trace(curve(), request, separated(5)))
        return with_spec(trace(candidate, request, separated(5), noise={"embed@1": 0.01}))

    state = Confirmation.begin(curve(), curve(5), compare(curve(), curve(5)), 6)
    assert (state.pending, state.window) == ((learning(Pair(curve(), curve(5))),), Window(4, 8))
    state = replace(state, reference=reference, candidate=candidate)
    while (request := state.next()) is not None:
        state = state.absorb(request, answer(request))
    keep(state.judgement)
    assert named(state) == [(code, "confirmed")]


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
    plain = curve()
    reference = curve(evaluations=[evaluation(plain, at)])
    candidate = curve(5, evaluations=[evaluation(plain, at, **changes)])
    rerun = faulty(candidate, gradient_factor=2.0)

    def answer(request: Request) -> LoadedRecord | None:
        return trace(reference, request) if request.runs_on == "reference" else rerun(request)

    state, _ = confirm(reference, candidate, answer, budget=10)
    assert named(state) == [("gradient", "confirmed"), *([("evaluation", "confirmed")] if is_named else [])]


def test_the_window_begins_at_the_first_difference_that_a_record_shows() -> None:
    def learn(record: LoadedRecord) -> LearnEvidence:
        assert record.record.evidence.learn is not None
        return record.record.evidence.learn

    reference = learn(curve())
    assert first_window(reference, learn(curve(6))) == Window(5, 8)
    assert first_window(reference, learn(curve(0))) == Window(0, 4)
    assert first_window(reference, reference) == Window(7, 8)
    other = [f"{step if step != 3 else 99:016x}" for step in range(CURVE)]
    assert first_window(reference, learn(curve(6, batches=other))) == Window(2, 6)
    assert first_window(reference, learn(curve(6, learning_rates=[1e-3]))) == Window(5, 8)


@pytest.mark.parametrize(("step", "window"), [(9, None), (6, None), (5, Window(4, 8)), (1, Window(0, 4))])
def test_only_weights_that_differ_before_the_window_move_it(step: int, window: Window | None) -> None:
    candidate = curve(6)
    state = Confirmation.begin(curve(), candidate, compare(curve(), candidate), 6)
    request = state.next()
    assert request is not None
    sides = trace(curve(), request), trace(candidate, request, separated(step))
    assert earlier_window(Window(5, 8), *sides) == window


def test_a_round_sends_the_second_trace_to_the_reference() -> None:
    candidate = curve(5)
    state = Confirmation.begin(curve(), candidate, compare(curve(), candidate), 6)
    case = Case("azure", "unit", "aws", state)
    ((_, first, assignment),) = wanted([case])
    assert assignment.platform == "azure"
    case = replace(case, confirmation=state.absorb(first, trace(candidate, first, gradient_factor=2.0)))
    ((_, second, assignment),) = wanted([case])
    assert assignment.platform == "aws"
    assert second.experiment.trace == first.experiment.trace == 4
    # A baseline has no platform: the experiment is lost, and the round ends.
    alone = replace(case, reference=None)
    assert wanted([alone]) == ()
    while alone.confirmation.next() is not None:
        (alone,) = absorb([alone], {}, {})
    assert named(alone.confirmation) == [("unattributed", "unattributed")]  # type: ignore[arg-type]


def test_a_tested_cause_has_the_suspects_of_the_judged_records_and_none_of_its_reruns() -> None:
    candidate = curve(5)
    elsewhere = faulty(candidate, separated(5), noise={"layer.norm": 1e-3}, fingerprint=other_kernel())
    state, _ = confirm(curve(), candidate, elsewhere)
    assert named(state) == [("operator", "confirmed")]
    assert [cause.suspects for cause in state.judgement.causes] == [()]
