"""The gate on speed: a slower candidate is looked at twice, and luck in the current lock's runs does not count."""

from __future__ import annotations

import pytest

from plumbline.errors import InconclusiveError
from plumbline.schema.suite import Gates
from plumbline.upgrade import Change
from plumbline.upgrade.gate import Gate
from tests.unit.judge.test_speed import SLOW, record, speed

SLOWER = record(speed(**SLOW["software"]))
AS_BEFORE = record(speed())
CHANGES = tuple(Change(f"p{number}", "1.0", "2.0") for number in range(3))


class Machine:
    """Gives the records of the trainings: of those with the guilty package, and of the current lock in their order."""

    def __init__(self, *, current=(AS_BEFORE, AS_BEFORE), guilty=(SLOWER,)):
        self.asked = []
        self.said = []
        self._current = list(current)
        self._guilty = list(guilty)

    def train(self, changes):
        self.asked.append(tuple(changes))
        if CHANGES[1] in changes:
            return self._guilty[0] if len(self._guilty) == 1 else self._guilty.pop(0)
        return self._current.pop(0) if not changes and self._current else AS_BEFORE

    def judge(self):
        return Gate(self.train, self.said.append).judge(CHANGES, Gates())


def test_a_slower_lock_is_drift_and_its_package_is_named():
    machine = Machine()
    upgrade = machine.judge()
    assert upgrade.judgement.verdict == "drift"
    assert upgrade.judgement.causes[0].code == "software"
    assert upgrade.bisection.culprits == (CHANGES[1],)
    assert upgrade.bisection.complement_passes
    assert machine.asked[:4] == [(), (), CHANGES, CHANGES]


def test_a_drop_that_the_second_look_does_not_show_is_none():
    machine = Machine(guilty=(SLOWER, AS_BEFORE))
    upgrade = machine.judge()
    assert upgrade.judgement.verdict == "pass"
    assert upgrade.bisection is None
    assert machine.asked == [(), (), CHANGES, CHANGES]


def test_the_slower_of_the_two_current_runs_is_what_the_candidate_is_held_against():
    lucky = record(speed(slower=-0.3))
    assert Machine(current=(lucky, AS_BEFORE), guilty=(AS_BEFORE,)).judge().judgement.verdict == "pass"


def test_a_lock_that_cannot_train_is_inconclusive():
    with pytest.raises(InconclusiveError, match="the candidate lock did not finish"):
        Machine(guilty=(None,)).judge()
