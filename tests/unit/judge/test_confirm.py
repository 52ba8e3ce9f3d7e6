"""Confirmation: which experiments confirm, refute or keep a cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import Confirmation
from plumbline.judge.confirm_requests import Request
from plumbline.records import LoadedRecord

from .conftest import Plan, make_record, other_kernel
from .kept_verdicts import keep, kept

compare = kept(compare)

Laboratory = Callable[[Request], LoadedRecord | None]


def experiment_record(plan: Plan, request: Request) -> LoadedRecord:
    """Return an experiment's record: first steps, without envelope."""
    whole = make_record(plan)
    probe = whole.record.evidence.probe
    assert probe is not None
    steps = request.experiment.steps
    kept = [place for place, tap in enumerate(probe.taps) if tap.step < steps]
    short = probe.replace(
        steps=[step.to_json() for step in probe.steps[:steps]],
        taps=[probe.taps[place].to_json() for place in kept],
        envelope=None,
    )
    record = whole.record.replace(
        record_id=request.experiment.experiment_id,
        experiment=request.experiment.to_json(),
        evidence=whole.record.evidence.replace(probe=short.to_json()),
    )
    arrays = dict(whole.arrays)
    arrays["sketches"] = {"sketch": whole.arrays["sketches"]["sketch"][kept]}
    arrays["batches"] = {name: array[:steps] for name, array in whole.arrays["batches"].items()}
    return LoadedRecord(record, whole.folder, arrays)


def confirm(
    reference: LoadedRecord, plan: Plan, laboratory: Laboratory, budget: int = 8
) -> tuple[Confirmation, list[Request]]:
    candidate = make_record(plan)
    state = Confirmation.begin(reference, candidate, compare(reference, candidate), budget)
    asked = []
    while (request := state.next()) is not None:
        asked.append(keep(request))
        state = state.absorb(request, laboratory(request))
    keep(state.judgement)
    return state, asked


def snapping(plan: Plan, **healed: Any) -> Laboratory:
    """Answer requests so that restored values remove the difference."""

    def run(request: Request) -> LoadedRecord:
        faulty = request.runs_on == "candidate" and not request.experiment.replays
        return experiment_record(plan if faulty else replace(plan, **healed), request)

    return run


def rigid(plan: Plan) -> Laboratory:
    """Answer requests so that no restored value has an effect."""
    return lambda request: experiment_record(plan if request.runs_on == "candidate" else Plan(), request)


def test_a_cause_is_confirmed_when_the_evidence_snaps_back(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    state, asked = confirm(reference, plan, snapping(plan, noise={}))
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == ("operator", "confirmed")
    assert cause.tried[0].startswith("an unchanged rerun")
    assert not asked[0].experiment.replays
    assert asked[1].runs_on == "reference"
    assert asked[1].experiment.captures[0].names == ("layer.norm",)
    sources = {replay.source for replay in asked[2].experiment.replays}
    assert sources == {source.key for source in asked[2].sources}


def test_nothing_that_snaps_back_is_unattributed_with_all_that_was_tried(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.linear": 3e-7, "layer.norm": 1e-3}, fingerprint=other_kernel())
    state, asked = confirm(reference, plan, rigid(plan))
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == ("unattributed", "unattributed")
    assert len(cause.tried) >= 3
    assert len(asked) <= 8
    assert state.judgement.verdict == "drift"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"noise": {"layer.norm": 1e-3}}, "operator"),
        ({"noise": {"layer.norm": 3e-7}}, "operator"),  # fp64 on both sides refutes the kernel for good
        ({"noise": {"head@6": 0.5}}, "evaluation"),
    ],
)
def test_a_put_back_that_fails_below_equal_bits_discards_no_name(
    reference: LoadedRecord, changes: dict[str, Any], code: str
) -> None:
    plan = Plan(**changes)
    state, asked = confirm(reference, plan, rigid(plan))
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == (code, "likely")
    assert len(cause.tried) == 1 + sum(
        bool(item.experiment.replays or item.experiment.precision) and item.runs_on == "candidate" for item in asked
    )


def test_a_rerun_of_other_bits_is_nondeterminism_and_asks_no_more(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    state, asked = confirm(
        reference, plan, lambda request: experiment_record(Plan(noise={"layer.norm": 2e-3}), request)
    )
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == ("nondeterminism", "confirmed")
    assert len(asked) == 1


def test_a_portable_leg_that_does_not_repeat_itself_adds_no_device_where_the_run_does_not_either() -> None:
    left = make_record(leg=True)
    plan = Plan(leg=True, repeated=False, gradient_factor=1.001)
    again = replace(plan, gradient_factor=1.002, leg=False)  # experiments have no portable leg
    state, _ = confirm(left, plan, lambda request: experiment_record(again, request))
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("nondeterminism", "confirmed")]
    steady, _ = confirm(left, Plan(leg=True, repeated=False), lambda request: experiment_record(Plan(), request))
    assert [cause.code for cause in steady.judgement.causes] == ["device"]


@pytest.mark.parametrize(
    ("place", "in_rerun", "cause"),
    [
        ("0/outputs/layer.norm", "same", ("operator", "confirmed")),
        ("0/gradients/layer.linear.weight", "same", ("gradient", "confirmed")),
        ("0/weights/head.weight", "same", ("optimizer", "likely")),  # or clipping, which no portable bit shows
        ("0/outputs/layer.norm", "none", ("operator", "likely")),
        ("0/outputs/layer.norm", "reference", ("nondeterminism", "confirmed")),
    ],
)
def test_a_difference_of_portable_bits_alone_is_looked_for_in_the_leg_of_the_rerun(
    place: str, in_rerun: str, cause: tuple[str, str]
) -> None:
    plan = Plan(leg=True, portable={place: "f" * 16}, noise={"layer.linear": 3e-7}, fingerprint=other_kernel())
    again = {"same": plan, "none": replace(plan, leg=False), "reference": replace(plan, portable={})}[in_rerun]

    def run(request: Request) -> LoadedRecord:
        return experiment_record(again if request.experiment.portable else replace(plan, leg=False), request)

    state, asked = confirm(make_record(leg=True), plan, run)
    assert [(each.code, each.sure) for each in state.judgement.causes] == [cause]
    assert asked[0].experiment.portable
    assert not any(request.experiment.portable for request in asked[1:])


def test_a_native_difference_is_tested_without_a_leg(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    _, asked = confirm(reference, plan, snapping(plan, noise={}))
    assert not any(request.experiment.portable for request in asked)


def test_a_drift_above_the_parting_keeps_its_own_cause(reference: LoadedRecord) -> None:
    order = Plan().order[::-1]
    plan = Plan(order=order, noise={"layer.norm@1": 1e-3})
    other = replace(plan, noise={"layer.norm@1": 2e-3})
    healed = Plan(noise={"layer.norm@1": 2e-3})

    def run(request: Request) -> LoadedRecord:
        return experiment_record(healed if request.experiment.replays else other, request)

    state, _ = confirm(reference, plan, run)
    assert {cause.code for cause in state.judgement.causes} >= {"nondeterminism", "data.order"}


def test_an_experiment_that_cannot_be_run_refutes_nothing(reference: LoadedRecord) -> None:
    plan = Plan(gradient_factor=1.5)
    candidate = make_record(plan)
    state = Confirmation.begin(reference, candidate, compare(reference, candidate), 8)
    while (request := state.next()) is not None:
        state = state.absorb(request, None, "no worker came online within 60 s")
    keep(state.judgement)
    cause = state.judgement.causes[0]
    assert (cause.code, cause.sure) == ("gradient", "likely")
    assert cause.tried[0].endswith("could not be run: no worker came online within 60 s")


@pytest.mark.parametrize("lost", range(4))
def test_an_experiment_that_infrastructure_lost_is_run_once_more(reference: LoadedRecord, lost: int) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    undisturbed, wanted = confirm(reference, plan, snapping(plan, noise={}), budget=3)
    assert len(wanted) == 3
    places = iter(range(9))
    state, asked = confirm(
        reference,
        plan,
        lambda request: None if next(places) == lost else snapping(plan, noise={})(request),
        budget=3,
    )
    assert state.judgement == undisturbed.judgement
    assert state.judgement.causes[0].sure == "confirmed"
    ids = [request.experiment.experiment_id for request in asked]
    assert len(set(ids)) == len(ids) == (4 if lost < 3 else 3)
    if lost < 3:
        assert asked[lost].experiment.suspect == asked[lost + 1].experiment.suspect


def test_the_experiments_of_two_workloads_with_long_names_are_never_taken_for_each_other(
    reference: LoadedRecord,
) -> None:
    faulty, asked = make_record(Plan(loss_factor=1.01)), []
    for name in ("azure-gpu-bert-base-reviews-0", "azure-gpu-bert-base-reviews-mlm-0"):
        candidate = replace(faulty, record=faulty.record.replace(record_id=f"20261121-020000-abcdef-{name}"))
        asked.append(Confirmation.begin(reference, candidate, compare(reference, candidate), 8).next())
    names = [request.experiment.experiment_id for request in asked if request is not None]
    assert len(set(names)) == 2
    assert all(len(name) <= 63 for name in names)


def test_the_budget_is_kept(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3})
    state, asked = confirm(reference, plan, snapping(plan, noise={}), budget=2)
    assert len(asked) == 2
    assert state.judgement.causes[0].sure == "likely"


def test_two_causes_are_confirmed_one_after_the_other(reference: LoadedRecord) -> None:
    rates = [rate * 2 for rate in Plan().rates]
    plan = Plan(rates=rates)
    plan.labels[3] = 1 - plan.labels[3]

    def run(request: Request) -> LoadedRecord:
        rungs = {replay.rung for replay in request.experiment.replays}
        healed = replace(plan, labels=Plan().labels) if "batch" in rungs else plan
        return experiment_record(replace(healed, rates=Plan().rates) if "schedule" in rungs else healed, request)

    state, asked = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [
        ("data.labels", "confirmed"),
        ("schedule", "confirmed"),
    ]
    assert {replay.rung for replay in asked[-1].experiment.replays} == {"batch", "schedule"}


def test_a_number_format_that_a_first_cause_hid_is_no_formula(reference: LoadedRecord) -> None:
    """Experiments have no fp64 run: the training's own tells that the candidate computes with fewer bits."""
    plan = Plan(noise={"layer.linear": 1e-3}, own_error=1e-3)
    plan.labels[3] = 1 - plan.labels[3]

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return experiment_record(Plan(), request)
        rungs = {replay.rung for replay in request.experiment.replays}
        exact = request.experiment.precision == "fp64"
        healed = replace(plan, labels=Plan().labels) if "batch" in rungs else plan
        return experiment_record(replace(healed, noise={}) if exact or "forward" in rungs else healed, request)

    state, _ = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [
        ("data.labels", "confirmed"),
        ("precision", "confirmed"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ({"order": Plan().order[::-1]}, {"noise": {"head@6": 0.5}}, "evaluation"),
        ({"rates": [rate * 2 for rate in Plan().rates]}, {"noise": {"head@6": 0.5}}, "evaluation"),
        ({"seed": 2}, {"noise": {"head@6": 0.5}}, "evaluation"),
        ({"seed": 2}, {"gradient_factor_at": 5}, "gradient"),
        ({"order": Plan().order[::-1]}, {"gradient_factor_at": 5}, "gradient"),
    ],
)
def test_a_second_cause_below_or_after_restored_batches_rates_and_generators_is_named(
    reference: LoadedRecord, first: dict[str, Any], second: dict[str, Any], code: str
) -> None:
    """Their values of every step are known: the experiments run the whole probe, with its evaluation."""
    plan = Plan(**first, **second)

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return experiment_record(Plan(), request)
        rungs = {replay.rung for replay in request.experiment.replays}
        restored = rungs & {"batch", "schedule", "rng"}
        healed = replace(plan, order=Plan().order, rates=Plan().rates, seed=Plan().seed) if restored else plan
        undone: dict[str, Any] = {"noise": {}, "gradient_factor_at": None} if rungs & {"evaluation", "gradient"} else {}
        return experiment_record(replace(healed, **undone), request)

    state, _ = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes][1:] == [(code, "confirmed")]


def test_precision_is_told_from_formula_by_fp64_on_both_sides(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.linear": 1e-3}, own_error=1e-3)

    def run(request: Request) -> LoadedRecord:
        exact = request.experiment.precision == "fp64"
        return experiment_record(Plan() if exact or request.runs_on == "reference" else plan, request)

    state, asked = confirm(reference, plan, run)
    assert (state.judgement.causes[0].code, state.judgement.causes[0].sure) == ("precision", "confirmed")
    assert [request.experiment.precision for request in asked[-2:]] == ["fp64", "fp64"]


@pytest.mark.parametrize(("in_fp64", "code"), [({}, "kernel"), ({"layer.linear": 3e-7}, "operator")])
def test_fp64_on_both_sides_tells_a_kernel_from_a_formula(
    reference: LoadedRecord, in_fp64: dict[str, float], code: str
) -> None:
    plan = Plan(noise={"layer.linear": 3e-7})

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference" or request.experiment.replays:
            return experiment_record(Plan(), request)
        exact = request.experiment.precision == "fp64"
        return experiment_record(Plan(noise=in_fp64) if exact else plan, request)

    state, asked = confirm(reference, plan, run, budget=6)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [(code, "confirmed")]
    assert [request.experiment.precision for request in asked[1:3]] == ["fp64", "fp64"]


@pytest.mark.parametrize(("budget", "num_widened"), [(5, 0), (6, 1), (8, 2)])
def test_widening_leaves_an_experiment_for_every_other_suspicion(
    reference: LoadedRecord, budget: int, num_widened: int
) -> None:
    """Each wider imposition finds one kind of module more that is off; the last suspicion has its turn all the same."""
    plan = Plan(noise={"layer.linear": 1e-3})
    imposed: list[tuple[str, ...]] = []

    def run(request: Request) -> LoadedRecord:
        forward = [capture.names for capture in request.experiment.captures if capture.rung == "forward"]
        if forward:
            imposed.append(forward[0])
        if request.runs_on == "reference":
            return experiment_record(Plan(), request)
        if any(replay.rung == "forward" for replay in request.experiment.replays):
            off = "embed" if "layer.norm" in imposed[-1] else "layer.norm"
            return experiment_record(Plan(noise={off: 1e-3}), request)
        return experiment_record(plan, request)

    state, asked = confirm(reference, plan, run, budget=budget)
    assert len(imposed) - 1 == num_widened
    assert any(replay.rung == "settings" for item in asked for replay in item.experiment.replays)
    assert state.spent <= budget


def test_a_pass_asks_for_nothing(reference: LoadedRecord) -> None:
    state, asked = confirm(reference, Plan(), lambda _: None)
    assert asked == []
    assert state.judgement.verdict == "pass"


def test_a_generator_that_is_seeded_within_each_step_is_put_back_at_each(reference: LoadedRecord) -> None:
    plan = Plan(seed=2)

    def run(request: Request) -> LoadedRecord:
        always = any(replay.rung == "rng" and replay.step is None for replay in request.experiment.replays)
        return experiment_record(Plan() if always else plan, request)

    state, asked = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("rng", "confirmed")]
    assert [replay.step for request in asked for replay in request.experiment.replays] == [0, None]


def test_what_varies_but_agrees_at_first_by_chance_is_nondeterminism_alone(reference: LoadedRecord) -> None:
    order = Plan().order
    swapped = [*order[4:8], *order[:4], *order[8:]]
    later = [*swapped[:16], *swapped[20:], *swapped[16:20]]
    state, asked = confirm(
        reference, Plan(order=swapped), lambda request: experiment_record(Plan(order=later), request)
    )
    assert [cause.code for cause in state.judgement.causes] == ["nondeterminism"]
    assert "batch at step 4" in state.judgement.causes[0].why
    assert asked[0].experiment.steps == len(reference.record.evidence.probe.steps)


def test_what_is_left_without_any_rounding_is_a_second_cause(reference: LoadedRecord) -> None:
    evaluated_otherwise = {"head@6": 0.5}
    plan = Plan(noise={"layer.linear": 1e-3, **evaluated_otherwise}, own_error=1e-3)

    def run(request: Request) -> LoadedRecord:
        exact = Plan(noise=evaluated_otherwise) if request.experiment.precision == "fp64" else plan
        return experiment_record(Plan() if request.runs_on == "reference" else exact, request)

    state, _ = confirm(reference, plan, run)
    assert {cause.code for cause in state.judgement.causes} == {"precision", "evaluation"}


def test_a_loss_that_shows_late_is_not_put_down_to_its_gradients(reference: LoadedRecord) -> None:
    plan = Plan(loss_factor=0.95, loss_shows_from=2)

    def run(request: Request) -> LoadedRecord:
        healed = any(replay.rung == "loss" for replay in request.experiment.replays)
        return experiment_record(Plan() if healed or request.runs_on == "reference" else plan, request)

    state, _ = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [("loss", "confirmed")]
    assert state.judgement.first_divergence.step == 2


def test_a_gradient_that_stays_off_once_the_loss_is_put_back_is_a_cause_of_its_own(reference: LoadedRecord) -> None:
    plan = Plan(loss_factor=0.95, loss_shows_from=2, gradient_factor=1.5)

    def run(request: Request) -> LoadedRecord:
        rungs = {replay.rung for replay in request.experiment.replays}
        healed = replace(plan, loss_factor=1.0) if "loss" in rungs else plan
        healed = replace(healed, gradient_factor=1.0) if "gradient" in rungs else healed
        return experiment_record(Plan() if request.runs_on == "reference" else healed, request)

    state, _ = confirm(reference, plan, run)
    assert {(cause.code, cause.sure) for cause in state.judgement.causes} == {
        ("loss", "confirmed"),
        ("gradient", "confirmed"),
    }


def test_a_cause_that_only_fp64_left_over_is_tested_in_fp64(reference: LoadedRecord) -> None:
    """The reference's record in fp64 is there already: one more experiment settles the second cause."""
    plan = Plan(noise={"layer.linear": 1e-3, "head@6": 0.5}, own_error=1e-3)

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference" or any(replay.rung == "evaluation" for replay in request.experiment.replays):
            return experiment_record(Plan(), request)
        exact = Plan(noise={"head@6": 0.5}) if request.experiment.precision == "fp64" else plan
        return experiment_record(exact, request)

    state, asked = confirm(reference, plan, run)
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [
        ("precision", "confirmed"),
        ("evaluation", "confirmed"),
    ]
    assert asked[-1].experiment.precision == "fp64"
    assert [replay.rung for replay in asked[-1].experiment.replays] == ["evaluation"]


LATER: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"rates": [*Plan().rates[:3], *(2 * rate for rate in Plan().rates[3:])]}, "schedule"),
    "labels": ({"labels": [*Plan().labels[:12], 1, *Plan().labels[13:]]}, "data.labels"),
    "evaluation": ({"evaluation_mode": True, "noise": {"layer.norm": 1e-3, "head@6": 0.5}}, "evaluation"),
}


@pytest.mark.parametrize(
    ("name", "heals"), [(name, heals) for name in LATER for heals in (True, False) if heals or name != "labels"]
)
def test_a_cause_that_shows_later_than_the_first_ones_capture_reaches_is_confirmed_too(
    reference: LoadedRecord, name: str, heals: bool
) -> None:
    changes, code = LATER[name]
    plan = Plan(**({"noise": {"layer.norm": 1e-3}} | changes))
    rung = {"schedule": "schedule", "data.labels": "batch", "evaluation": "evaluation"}[code]

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference":
            return experiment_record(Plan(), request)
        imposed = {replay.step for replay in request.experiment.replays if replay.rung == "forward"}
        healed = plan
        if imposed >= {*range(min(request.experiment.steps, 6))}:
            healed = replace(healed, noise={key: size for key, size in plan.noise.items() if "@" in key})
        if heals and rung in {replay.rung for replay in request.experiment.replays}:
            fixed = {"noise": {key: size for key, size in healed.noise.items() if "@" not in key}}
            fixed = fixed if code == "evaluation" else {key: getattr(Plan(), key) for key in changes}
            healed = replace(healed, evaluation_mode=False, **fixed)
        return experiment_record(healed, request)

    state, asked = confirm(reference, plan, run, budget=6)
    causes = {cause.code: cause.sure for cause in state.judgement.causes}
    assert causes["operator"] == "confirmed"
    assert (causes.get(code) == "confirmed") is heals
    again = [item for item in asked if item.runs_on == "reference"][1]
    assert {capture.step for capture in again.experiment.captures} == set(range(again.experiment.steps))


def test_a_wider_capture_that_fails_leaves_the_second_cause_likely(reference: LoadedRecord) -> None:
    plan = Plan(noise={"layer.norm": 1e-3}, rates=LATER["schedule"][0]["rates"])

    def run(request: Request) -> LoadedRecord:
        if request.runs_on == "reference" and len(request.experiment.captures) > 2:
            record = experiment_record(Plan(), request)
            failed = record.record.replace(exit={"status": "failed", "code": "data", "message": "too large"})
            return LoadedRecord(failed, record.folder, record.arrays)
        imposed = request.experiment.replays or request.runs_on == "reference"
        return experiment_record(replace(plan, noise={}) if imposed else plan, request)

    state, asked = confirm(reference, plan, run)
    assert {cause.code: cause.sure for cause in state.judgement.causes} == {
        "operator": "confirmed",
        "schedule": "likely",
    }
    assert len(asked) == 4


@pytest.mark.parametrize("heals", [True, False])
def test_a_gradient_that_changed_after_its_record_is_told_from_an_update(reference: LoadedRecord, heals: bool) -> None:
    """A flipped sign keeps the norm; the reference's clipped gradients imposed tell it from another update."""
    plan = Plan(gradient_sign=-1.0)

    def run(request: Request) -> LoadedRecord:
        imposed = any(replay.rung == "clipped" for replay in request.experiment.replays)
        fine = request.runs_on == "reference" or (imposed and heals)
        return experiment_record(Plan() if fine else plan, request)

    state, _ = confirm(reference, plan, run)
    expected = ("gradient", "confirmed") if heals else ("optimizer", "likely")
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [expected]
