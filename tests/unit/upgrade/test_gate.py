"""The gate names the packages of every effect, confirms them, and accuses nobody where nothing is known."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from plumbline.environments.changes import Failure
from plumbline.schema.errors import ExitCode, InconclusiveError
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement, Note
from plumbline.upgrade.answer import Package
from plumbline.upgrade.gate import Parts, UpgradeGate, UpgradeOptions
from tests.unit.upgrade.conftest import Machine, change, changes, drift

NUMERICS = Parts(speed=False, inputs=False)


def judge(machine, given, parts=NUMERICS, **keywords):
    return UpgradeGate(machine, Gates(), parts, **keywords).judge(given)


def named(answer):
    return [(one.effect, *(entry.package for entry in one.changes)) for one in answer.culprits]


def drifts_with(*groups):
    return lambda names: "drift" if any(set(group) <= names for group in groups) else "same"


def test_the_culprit_of_a_drift_is_named_with_its_place_and_its_proof():
    machine = Machine({"numerics": drifts_with(["p013"])})
    answer = judge(machine, changes(20))
    assert answer.verdict == "drift"
    assert answer.exit_code is ExitCode.DRIFT
    (sentence,) = answer.sentences
    assert sentence == (
        "p013 1.0 → 2.0 changes operator: first at step 0, encoder.layer.0.intermediate; "
        "confirmed: alone it drifts, all others without it pass"
    )
    assert answer.constraints == ("p013==1.0",)


def test_two_independent_culprits_and_a_pair_are_named():
    machine = Machine({"numerics": drifts_with(["p001"], ["p004", "p011"])})
    answer = judge(machine, changes(20))
    assert sorted(named(answer)) == [("numerics", "p001"), ("numerics", "p004", "p011")]
    assert all(one.sure == "confirmed" and one.others == "other culprits" for one in answer.culprits)


def test_trials_train_the_first_steps_only_where_the_drift_shows_there():
    machine = Machine({"numerics": drifts_with(["p003"])})
    judge(machine, changes(8))
    *searched, last = [one for one in machine.asked if one.part == "numerics"][2:]
    assert all((one.steps, one.learn) == (1, False) for one in searched)
    assert last.learn
    assert "p003" not in {one.package for one in last.changes}


def test_a_culprit_behind_the_first_steps_is_named_beside_one_that_shows_there():
    machine = Machine({"numerics": drifts_with(["p003"], ["p006"])})
    answer = machine.answer

    def shows_later(trial):
        """Show `p006` in whole trainings alone."""
        result = answer(trial)
        is_early = trial.part != "numerics" or not trial.learn
        later_alone = "p003" not in {one.package for one in trial.changes}
        return result.replace(outcome="same", judgement=None) if is_early and later_alone else result

    machine.answer = shows_later
    assert named(judge(machine, changes(8))) == [("numerics", "p003"), ("numerics", "p006")]


def test_a_package_that_cannot_train_is_named_and_the_others_are_judged_without_it():
    def rule(names):
        if "p002" in names:
            return "cannot-train"
        return "drift" if "p006" in names else "same"

    answer = judge(Machine({"numerics": rule}), changes(8))
    assert named(answer) == [("cannot-train", "p002"), ("numerics", "p006")]
    assert "p002 1.0 → 2.0 cannot train: boom" in answer.sentences[0]
    assert answer.verdict == "drift"


TOGETHER = {
    "tokenizers": Package(package="tokenizers", needs=("transformers",)),
    "transformers": Package(package="transformers", needs=("tokenizers",)),
}
"""Releases that require each other: no resolver allows one of them alone."""


@pytest.mark.parametrize(("code", "accused"), [
    ("tokenization", ["tokenizers"]), ("operator", ["tokenizers", "transformers"]), ("", ["transformers"]),
])  # fmt: skip
def test_of_packages_that_require_each_other_the_evidence_names_one_or_all_are_named(code, accused):
    machine = Machine({"numerics": lambda names: "drift" if "tokenizers" in names else "same"}, packages=TOGETHER)
    answer = machine.answer
    refused = Failure(stage="import", package="transformers", library="transformers", message="is older than 4.41")

    def by_evidence(trial):
        result = answer(trial)
        if result.outcome != "drift":
            return result
        if not code:
            return result.replace(outcome="cannot-train", judgement=None, failures=(refused,))
        return result.replace(judgement=drift(code=code))

    machine.answer = by_evidence
    (culprit,) = judge(machine, (change("tokenizers"), change("transformers"), change("p001"))).culprits
    assert [entry.package for entry in culprit.changes] == accused
    assert culprit.sure == "confirmed"
    others = sorted({"tokenizers", "transformers"} - set(accused))
    assert [entry.package for entry in culprit.companions] == others


@pytest.mark.parametrize(("codes", "packages", "named"), [
    (["portable", "rounding"], ["transformers"], "; because of transformers 1.0 → 2.0"),
    (["rounding"], ["mkl"], "; because of mkl 1.0 → 2.0"),
])  # fmt: skip
def test_a_pass_whose_bits_differ_names_no_package_without_a_trial(codes, packages, named):
    def notes_of(*codes):
        machine, notes = Machine(), tuple(Note(code=code, text=f"about {code}") for code in codes)
        answer = machine.answer
        machine.answer = lambda trial: answer(trial).replace(judgement=Judgement(verdict="pass", notes=notes))
        found = judge(machine, tuple(change(name) for name in packages))
        assert found.verdict == "pass"
        return found.notes

    assert notes_of(*codes) == (f"about rounding{named}",)
    assert notes_of("equal-bits") == ()


def test_no_set_is_trained_twice_after_a_package_that_cannot_train():
    machine = Machine({"numerics": lambda names: "cannot-train" if "p002" in names else "same"})
    judge(machine, changes(8))
    asked = [one.changes for one in machine.asked if one.part == "numerics"]
    assert len(asked) == len(set(asked))


def test_what_training_loads_without_the_package_that_cannot_train_is_not_listed_as_not_loaded():
    machine = Machine({"numerics": lambda names: "cannot-train" if "p002" in names else "same"}, opened={"p002"})
    answer = machine.answer

    def loads_more(trial):
        result = answer(trial)
        names = {one.package for one in trial.changes}
        return result.replace(opened=("p002", "p001")) if "p001" in names and "p002" not in names else result

    machine.answer = loads_more
    assert judge(machine, changes(3)).not_opened == ("p000",)


def test_a_package_that_cannot_be_installed_is_named_before_any_training():
    failure = Failure(stage="install", package="p001", message="ERROR: no matching distribution")
    machine = Machine(failures=(failure,))
    answer = judge(machine, changes(3))
    assert named(answer) == [("cannot-install", "p001")]
    assert answer.exit_code is ExitCode.USAGE
    assert len(machine.asked) == 1


def test_changes_that_training_never_loads_are_trained_before_they_pass():
    """A package of data alone, which a start-up hook or a compiled library reads, is loaded by no module."""
    machine = Machine(opened={"torch"})
    answer = judge(machine, changes(5), Parts(speed=False))
    assert answer.verdict == "pass"
    assert answer.not_opened == ("p000", "p001", "p002", "p003", "p004")
    assert [one.part for one in machine.asked] == ["environment", "reference", "numerics", "inputs"]
    machine = Machine({"numerics": drifts_with(["p003"])}, opened={"torch"})
    assert named(judge(machine, changes(5))) == [("numerics", "p003")]


def test_a_second_culprit_that_training_never_loads_is_tried():
    machine = Machine({"numerics": drifts_with(["p001"], ["p003"])}, opened={"p001"})
    assert named(judge(machine, changes(5))) == [("numerics", "p001"), ("numerics", "p003")]


@pytest.mark.parametrize("opened", [None, set(), {"p000"}, {"p000", "p001"}])
def test_all_others_are_tried_without_a_culprit_whatever_training_opens(opened):
    machine = Machine({"numerics": drifts_with(["p000"])}, opened=opened)
    assert judge(machine, changes(1)).sentences[0].endswith(", nothing else changes")
    machine = Machine({"numerics": drifts_with(["p000"])}, opened=opened)
    assert judge(machine, changes(5)).sentences[0].endswith(", all others without it pass")
    last = [one for one in machine.asked if one.part == "numerics"][-1]
    assert [one.package for one in last.changes] == ["p001", "p002", "p003", "p004"]


def test_a_culprit_of_data_alone_costs_no_trial_twice():
    """The opened changes without an effect are tried once, and are the background of the search for the others."""
    machine = Machine({"numerics": drifts_with(["p005"])}, opened={"p000", "p001"})
    assert named(judge(machine, changes(6), Parts(learn=False, speed=False, inputs=False))) == [("numerics", "p005")]
    asked = [frozenset(one.package for one in trial.changes) for trial in machine.asked if trial.steps == 1][1:]
    assert asked[0] == {"p000", "p001"}
    assert len(asked) == len(set(asked))
    assert len(asked) <= math.ceil(math.log2(4)) + 3


def test_what_needs_a_culprit_is_said_not_to_be_tried_without_it():
    packages = {"p002": Package(package="p002", needs=("p001",))}
    answer = judge(Machine({"numerics": drifts_with(["p001"])}, packages=packages), changes(4))
    assert named(answer) == [("numerics", "p001")]
    assert answer.notes == ("not tried without the culprits, which they need: p002 1.0 → 2.0",)


class Steady(Machine):
    """A machine of equal speed; it rounds differently with `rounder`, and speed alone opens files of `compiled`."""

    def __init__(self, *, opened, compiled=(), rounder=""):
        super().__init__(ratios=lambda _, count: [0.001 * (-1) ** place for place in range(count)], opened=opened)
        self.compiled, self.rounder = compiled, rounder

    def answer(self, trial):
        result = super().answer(trial)
        if trial.part == "speed":
            return result.replace(opened=tuple(self.compiled))
        is_equal = self.rounder not in {one.package for one in trial.changes}
        notes = (Note(code="equal-bits" if is_equal else "rounding", text="bits"),)
        judgement = Judgement(verdict="pass", notes=notes)
        return result.replace(has_equal_bits=is_equal, judgement=judgement) if trial.part == "numerics" else result


@pytest.mark.parametrize(("machine", "num_pairs"), [
    (Steady(opened={"torch"}), [1]),
    (Steady(opened={"p001"}), [3]),
    (Steady(opened={"torch"}, compiled={"p001"}), [1, 2]),
    (Steady(opened={"torch"}, rounder="p001"), [3]),
])  # fmt: skip
def test_speed_is_compared_unless_bits_are_equal_and_no_training_opens_a_change(machine, num_pairs):
    answer = judge(machine, changes(3), Parts(learn=False, inputs=False))
    assert [trial.pairs for trial in machine.asked if trial.part == "speed"] == num_pairs
    assert answer.verdict == "pass"
    untried = "throughput and memory: not tried, for no training opens a file of the changes"
    assert (untried in answer.notes) == (num_pairs == [1]) == (answer.speed is None)
    assert answer.sentences[0].endswith(f"; {untried}") == (num_pairs == [1])


def test_the_change_that_rounds_differently_is_named_by_trials():
    machine = Steady(opened={"p000"}, rounder="p003")
    answer = judge(machine, changes(5), Parts(learn=False, speed=False, inputs=False))
    assert (answer.verdict, answer.notes) == ("pass", ("bits; because of p003 1.0 → 2.0",))
    tried = [[one.package for one in trial.changes] for trial in machine.asked if trial.part == "numerics"]
    assert ["p003"] in tried
    assert ["p000", "p001", "p002", "p004"] in tried


def test_a_current_environment_that_disagrees_with_itself_accuses_nobody():
    answer = judge(Machine({"numerics": lambda _: "drift"}), changes(3))
    assert answer.verdict == "inconclusive"
    assert answer.culprits == ()


@pytest.mark.parametrize(("share", "num_seeds"), [(0.25, 12), (0.5, 12), (0.8, 60)])
def test_a_flaky_culprit_is_named_and_nothing_else_is(share, num_seeds):
    for seed in range(num_seeds):
        generator, asked = random.Random(seed), []

        def rule(names, generator=generator, asked=asked):
            asked.append(names)
            return "drift" if "p002" in names and (len(asked) == 1 or generator.random() < share) else "same"

        answer = judge(Machine({"numerics": rule}), changes(6))
        assert answer.verdict == "drift"
        if share >= 0.5:
            assert named(answer) == [("numerics", "p002")], seed
        assert all(culprit.sure == "likely" for culprit in answer.culprits if len(culprit.changes) > 1), seed


def test_a_lost_trial_is_no_culprit_and_no_pass():
    answer = judge(Machine({"numerics": lambda names: "lost" if names else "same"}), changes(3))
    assert answer.verdict == "inconclusive"
    assert answer.culprits == ()


def test_inputs_that_differ_are_bisected_by_themselves():
    machine = Machine({"inputs": drifts_with(["p002"])})
    answer = judge(machine, changes(4), Parts(speed=False))
    assert named(answer) == [("inputs", "p002")]


@pytest.mark.parametrize(("loss", "verdict"), [(0.08, "drift"), (0.05, "drift"), (0.0, "pass")])
def test_a_slower_package_is_named(loss, verdict):
    generator = random.Random(1)

    def ratios(names, count):
        return [generator.gauss(-loss if "p001" in names else 0.0, 0.01) for _ in range(count)]

    answer = judge(Machine(ratios=ratios), changes(4), Parts(inputs=False))
    assert answer.verdict == verdict
    assert named(answer) == ([("speed", "p001")] if loss else [])


def noisy(spread, seed, loss=0.077):
    """A machine whose equal trainings differ by `spread`, and on which p003 costs a share of the throughput."""
    generator = random.Random(seed)

    def ratios(names, count):
        return [generator.gauss(-loss if "p003" in names else 0.0, spread) for _ in range(count)]

    return Machine(ratios=ratios, opened={f"p{number:03d}" for number in range(5)})


@pytest.mark.parametrize(("spread", "least"), [(0.03, 23), (0.05, 14), (0.07, 5)])
def test_noise_costs_the_name_of_a_slower_package_and_never_accuses_a_different_one(spread, least):
    answers = [judge(noisy(spread, seed), changes(7), Parts(inputs=False)) for seed in range(24)]
    assert {tuple(named(answer)) for answer in answers} <= {(("speed", "p003"),), ()}
    assert sum(bool(answer.culprits) for answer in answers) >= least
    # The candidate as a whole stays slower where no pairs say which change it is.
    unnamed = [answer for answer in answers if answer.verdict == "drift" and not answer.culprits]
    for answer in unnamed:
        (sentence,) = answer.sentences
        assert sentence.startswith(
            f"training is at least {answer.speed.low:.1%} slower with the candidate; 40 pairs do"
        )
    assert all(answer.verdict in {"drift", "inconclusive"} for answer in answers)
    assert unnamed


def test_a_single_slower_change_is_named_with_the_whole_loss():
    answer = judge(noisy(0.01, 1), [change("p003")], Parts(inputs=False))
    (culprit,) = answer.culprits
    assert culprit.drop == answer.speed.drop


def test_the_printed_loss_is_not_overstated_by_pairs_that_decide_early():
    """Three pairs that happen to be slow end the question: their mean was twice the loss that later pairs measured."""
    true = 0.13
    answers = [judge(noisy(0.05, seed, loss=true), [change("p003")], Parts(inputs=False)) for seed in range(60)]
    culprits = [culprit for answer in answers for culprit in answer.culprits]
    assert len(culprits) > 50
    assert sum(culprit.drop > 1.1 * true for culprit in culprits) > 5
    assert sum(culprit.least_drop > true for culprit in culprits) <= 3
    assert all(
        f": at least {culprit.least_drop:.1%} of the throughput is lost (" in culprit.sentence for culprit in culprits
    )


def greedy(growth, spread=0.004, loss=0.0):
    """A machine on which p002 needs more memory, and p001 costs throughput."""
    generator = random.Random(1)
    return Machine(
        ratios=lambda names, count: [generator.gauss(-loss if "p001" in names else 0, 0.005) for _ in range(count)],
        memory=lambda names, count: [generator.gauss(growth if "p002" in names else 0, spread) for _ in range(count)],
    )


@pytest.mark.parametrize(("growth", "loss", "effects"), [
    (0.12, 0.0, [("memory", "p002")]), (0.12, 0.1, [("speed", "p001"), ("memory", "p002")]), (0.01, 0.0, []),
    (-0.2, 0.0, []),
])  # fmt: skip
def test_a_package_that_needs_more_memory_is_named_by_the_pairs_of_the_speed(growth, loss, effects):
    machine = greedy(growth, loss=loss)
    answer = judge(machine, changes(4), Parts(inputs=False))
    assert named(answer) == effects
    assert answer.verdict == ("drift" if effects else "pass")
    (use,) = answer.memory
    assert (use.kind, use.outcome) == ("host memory", "more" if growth > 0.05 else "as much")
    assert use.low <= math.expm1(growth) <= use.high
    if ("memory", "p002") in effects:
        assert "makes training need more memory: at least 1" in answer.sentences[-1]
        assert answer.sentences[-1].endswith("confirmed: alone it grows, all others without it pass")
    asked = [trial for trial in machine.asked if trial.part == "speed" and len(trial.changes) == 4]
    assert [trial.pairs for trial in asked] == [3]  # one question, two answers


def test_memory_that_no_pairs_decide_is_no_pass():
    answer = judge(greedy(0.03, spread=0.1), changes(4), Parts(inputs=False))
    assert (answer.verdict, answer.culprits) == ("inconclusive", ())
    assert answer.sentences == ("12 pairs do not decide whether the candidate needs more host memory",)


def test_undecided_pairs_are_no_pass():
    noise = itertools.cycle([0.5, -0.5])
    answer = judge(
        Machine(ratios=lambda _, count: [next(noise) for _ in range(count)]), changes(2), Parts(inputs=False)
    )
    assert answer.verdict == "inconclusive"


def test_a_speed_part_that_gave_no_number_is_no_pass():
    machine = Machine(ratios=lambda _, count: [float(0)] * count)
    answer = machine.answer
    machine.answer = lambda trial: (
        answer(trial).replace(outcome="lost", log_ratios=()) if trial.part == "speed" else answer(trial)
    )
    assert judge(machine, changes(2), Parts(inputs=False)).verdict == "inconclusive"


def test_a_package_whose_speed_part_fails_is_named():
    machine = Machine(ratios=lambda _, count: [float(0)] * count)
    answer = machine.answer

    def failing(trial):
        result = answer(trial)
        is_guilty = trial.part == "speed" and "p001" in {one.package for one in trial.changes}
        return result.replace(outcome="cannot-train", log_ratios=()) if is_guilty else result

    machine.answer = failing
    assert named(judge(machine, changes(4), Parts(inputs=False))) == [("cannot-train", "p001")]


def test_the_budget_ends_the_gate():
    with pytest.raises(InconclusiveError, match="budget is spent: 3 trials"):
        judge(Machine({"numerics": drifts_with(["p013"])}), changes(20), options=UpgradeOptions(trials=3))
