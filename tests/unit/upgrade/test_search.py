"""The search names every minimal failing set, in few trials, and accuses nothing else."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.upgrade.search import find_culprits


class Asked:
    """Answers from a rule, and counts what is asked."""

    def __init__(self, rule):
        self.rule = rule
        self.sets = []

    def __call__(self, items):
        self.sets.append(items)
        return self.rule(set(items))


def packages(count):
    return tuple(f"p{number:03d}" for number in range(count))


def fails_with(*groups):
    return lambda items: "fails" if any(set(group) <= items for group in groups) else "passes"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 100), st.data())
def test_one_culprit_takes_about_log2_n_trials(count, data):
    guilty = data.draw(st.sampled_from(packages(count)))
    ask = Asked(fails_with([guilty]))
    found = find_culprits(packages(count), ask)
    assert [one.items for one in found.culprits] == [(guilty,)]
    assert found.rest_answer == "passes"
    assert len(ask.sets) <= math.ceil(math.log2(count)) + 2
    assert len(ask.sets) == len(set(ask.sets))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(1, 3), st.data())
def test_independent_culprits_and_pairs_are_all_named(count, size, data):
    shuffled = data.draw(st.permutations(packages(count)))
    groups = [shuffled[start : start + size] for start in range(0, min(count, 2 * size), size)]
    groups = [group for group in groups if len(group) == size] or [shuffled[:1]]
    found = find_culprits(packages(count), Asked(fails_with(*groups)))
    assert {frozenset(one.items) for one in found.culprits} == {frozenset(group) for group in groups}
    assert all(one.is_minimal for one in found.culprits)
    assert found.rest_answer == "passes"


def test_what_needs_another_is_tried_with_it_and_only_the_guilty_one_is_named():
    needs = {"torch": frozenset({"nvidia"}), "nvidia": frozenset({"torch"})}

    def rule(items):
        assert ("torch" in items) == ("nvidia" in items), "never tried apart"
        return "fails" if "torch" in items else "passes"

    found = find_culprits(("a", "nvidia", "torch", "z"), Asked(rule), needs=needs)
    assert set(found.culprits[0].items) == {"nvidia", "torch"}
    guilty_need = Asked(fails_with(["b"]))
    found = find_culprits(("a", "b", "c"), guilty_need, needs={"a": frozenset({"b"})})
    assert found.culprits[0].items == ("b",)
    found = find_culprits(("a", "b", "c"), Asked(fails_with(["a"])), needs={"a": frozenset({"b"})})
    assert (found.culprits[0].items, found.culprits[0].companions) == (("a",), ("b",))


def test_what_a_culprit_only_brings_along_costs_one_trial_and_a_guilty_one_of_it_is_found():
    libraries = tuple(f"nvidia-{number:02d}" for number in range(14))
    needs = {"torch": frozenset(libraries)}
    items = (*packages(3), *libraries, "torch", "transformers")
    ask = Asked(fails_with(["torch"]))
    found = find_culprits(items, ask, needs=needs)
    assert (found.culprits[0].items, found.culprits[0].companions) == (("torch",), libraries)
    assert len(ask.sets) <= math.ceil(math.log2(len(items))) + 3
    found = find_culprits(items, Asked(fails_with([libraries[5]])), needs=needs)
    assert [one.items for one in found.culprits] == [(libraries[5],)]
    found = find_culprits(items, Asked(fails_with([libraries[5], libraries[9]])), needs=needs)
    assert [one.items for one in found.culprits] == [(libraries[5], libraries[9])]


def test_an_unjudged_subset_is_no_pass_and_no_culprit():
    def rule(items):
        if "b" in items:
            return "fails"
        return "unknown" if "c" in items else "passes"

    found = find_culprits(("a", "b", "c"), Asked(rule))
    assert found.culprits[0].items == ("b",)
    assert found.rest_answer == "unknown"


def test_a_change_that_another_reverts_is_named():
    """`a` fails, `b` undoes it, `c` makes it fail again."""

    def rule(items):
        return "fails" if ("a" in items and "b" not in items) or "c" in items else "passes"

    found = find_culprits(("a", "b", "c", "d"), Asked(rule))
    assert {one.items for one in found.culprits} == {("c",)}
    assert found.rest_answer == "passes"


def test_a_spent_budget_is_said():
    found = find_culprits(packages(100), Asked(fails_with(["p050"])), budget=2)
    assert not found.is_complete
    assert found.culprits == ()


@settings(max_examples=30, deadline=None)
@given(st.sets(st.sampled_from(packages(12)), min_size=1), st.data())
def test_whatever_is_accused_fails_by_itself(guilty, data):
    """Also where some answers cannot be judged."""
    answers = {}

    def rule(items):
        key = frozenset(items)
        if key == frozenset(guilty):
            return "fails"
        if key not in answers:
            answers[key] = data.draw(st.sampled_from(["passes", "passes", "unknown"]))
        return answers[key]

    found = find_culprits(tuple(sorted(guilty)), Asked(rule))
    assert [set(one.items) for one in found.culprits] == [guilty]
