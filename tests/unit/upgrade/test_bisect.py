"""The bisection names the packages that make training drift, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.errors import ConfigurationError
from plumbline.upgrade import PackageChange, bisect, changes_between, read_lock


@given(st.data())
def test_the_culprits_are_found_alone_or_together(data):
    packages = tuple(f"p{number}" for number in range(data.draw(st.integers(1, 24))))
    culprits = data.draw(st.sets(st.sampled_from(packages), min_size=1, max_size=3))
    asked = []

    def trial(subset):
        asked.append(subset)
        return "drift" if culprits <= set(subset) else "pass"

    found = bisect(packages, trial)
    assert set(found.culprits) == culprits
    assert found.complement == "pass"
    assert len(asked) == len(set(asked))


def test_one_of_two_independent_culprits_is_named_and_the_other_is_said_to_be_left():
    found = bisect(("a", "b", "c"), lambda subset: "drift" if {"a", "c"} & set(subset) else "pass")
    assert len(found.culprits) == 1
    assert found.complement == "drift"


def test_a_subset_that_cannot_run_says_nothing():
    """`torch` does not import without the `nvidia` that it needs."""

    def trial(subset):
        if ("torch" in subset) != ("nvidia" in subset):
            return "broken"
        return "drift" if "torch" in subset else "pass"

    found = bisect(("a", "nvidia", "torch", "z"), trial)
    assert set(found.culprits) == {"nvidia", "torch"}
    assert any(outcome == "broken" for _, outcome in found.trials)


def test_what_is_left_is_not_said_to_pass_if_it_cannot_be_judged():
    """Nor is a broken subset narrowed down to."""
    found = bisect(("a", "b", "c"), lambda subset: "drift" if "b" in subset else "broken")
    assert found.culprits == ("b",)
    assert found.complement == "broken"


def test_locks_are_read_as_pip_writes_them(tmp_path):
    current = tmp_path / "current.txt"
    current.write_text(
        "# made by pip-compile\n--index-url x\ntorch==2.13.0\n    # via plumbline\nNum_Py==2.0 ; python\n"
    )
    candidate = tmp_path / "candidate.txt"
    candidate.write_text("torch==2.14.0\nnum-py==2.0\nnew[extra]==1\n")
    changes = changes_between(read_lock(current), read_lock(candidate))
    assert changes == (PackageChange("new", None, "1"), PackageChange("torch", "2.13.0", "2.14.0"))


@pytest.mark.parametrize("text", ["torch>=2\n", "", "-e .\n"])
def test_a_lock_that_pins_nothing_is_refused(tmp_path, text):
    path = tmp_path / "lock.txt"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="pins no"):
        read_lock(path)
