"""One round compares each pair of records once, and checks each record once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from plumbline.judge.whole import whole
from plumbline.night.rounds import Assignment
from plumbline.night.rounds.confirming import open_cases
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.plan import MAIN
from tests.unit.judge.conftest import spec
from tests.unit.night.rounds.test_stand_in import record
from tests.unit.suites import round_of, suite_of

PLATFORMS = ("aws", "azure", "gcp")


def calls(function: Callable[[], Any]) -> Counter[str]:
    """Return how often each function of the judge is called."""
    found: Counter[str] = Counter()

    def count(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and "/judge/" in frame.f_code.co_filename:
            found[f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_name}"] += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("changed", [{}, {"gcp": {"loss_factor": 1.01}}])
def test_a_round_compares_each_pair_and_checks_each_record_once(changed: dict[str, Any]) -> None:
    """Two platforms beside the reference and three beside their baselines, of six records."""
    round_ = round_of(suite_of(*PLATFORMS), spec())
    made = {name: record(name, **changed.get(name, {})) for name in PLATFORMS}
    gathered = GatheredRecords({Assignment(name, "w", MAIN): whole(made[name]) for name in PLATFORMS})
    before = {name: whole(record(name, record={"record_id": f"{name}-before"})) for name in PLATFORMS}

    def night() -> None:
        results = judge_harvest(round_, gathered, {"w": before}, {}, {})
        open_cases(round_, gathered, {"w": before}, results)

    found = calls(night)
    assert found["walk.py:walk"] == 5
    assert found["whole.py:gaps"] == 6
