"""The gate on speed: a slower candidate is looked at twice, and luck in the current lock's runs does not count."""

from __future__ import annotations

import pytest

from plumbline.cli.upgrade import _print
from plumbline.errors import CorruptDataError, DiskFullError, InconclusiveError, UnavailableError
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.upgrade import PackageChange
from plumbline.upgrade.gate import Gate, summary
from tests.unit.judge.test_speed import SLOW, record, speed

SLOWER = record(speed(**SLOW["software"]))
AS_BEFORE = record(speed())
UNMEASURED = record(speed().replace(samples_per_second=None))
OTHER_TASK = LoadedRecord(AS_BEFORE.record.replace(spec_sha256="0" * 64), AS_BEFORE.folder, AS_BEFORE.arrays)
CHANGES = tuple(PackageChange(f"p{number}", "1.0", "2.0") for number in range(3))


class Machine:
    """Gives the records of the trainings: of those with the guilty package, and of the current lock in their order."""

    def __init__(self, *, current=(AS_BEFORE, AS_BEFORE), guilty=(SLOWER,)):
        self.asked = []
        self.said = []
        self.alone = {}
        self._current = list(current)
        self._guilty = list(guilty)

    def train(self, changes):
        self.asked.append(tuple(changes))
        if CHANGES[1] in changes:
            return self._guilty[0] if len(self._guilty) == 1 else self._guilty.pop(0)
        if changes and changes[0] in self.alone:
            left = self.alone[changes[0]]
            given = left[0] if len(left) == 1 else left.pop(0)
            if isinstance(given, Exception):
                raise given
            return given
        return self._current.pop(0) if not changes and self._current else AS_BEFORE

    def judge(self):
        return Gate(self.train, self.said.append).judge(CHANGES, Gates())


def test_a_slower_lock_is_drift_and_its_package_is_named():
    machine = Machine()
    upgrade = machine.judge()
    assert upgrade.judgement.verdict == "drift"
    assert upgrade.judgement.causes[0].code == "software"
    assert upgrade.bisection.culprits == (CHANGES[1],)
    assert upgrade.bisection.complement == "pass"
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


def bisected(alone, **machine):
    """The upgrade of a guilty package beside one whose trainings, without the guilty one, give `alone` in turn."""
    found = Machine(**machine)
    found.alone = {CHANGES[0]: list(alone)}
    return found, found.judge()


@pytest.mark.parametrize("alone", [UNMEASURED, OTHER_TASK, None], ids=["inconclusive", "invalid", "cannot train"])
def test_what_could_not_be_judged_is_not_said_to_pass(alone, capsys):
    _, upgrade = bisected([alone])
    assert upgrade.bisection.culprits == (CHANGES[1],)
    answer = summary(upgrade)
    assert answer["bisection"]["others"] == "broken"
    assert answer["bisection"]["others_pass"] is False
    outcomes = {tuple(one["changes"]): one["outcome"] for one in answer["bisection"]["trials"]}
    assert outcomes[(str(CHANGES[0]),)] == "broken"
    _print(answer)
    assert "all other changes together: could not be judged" in capsys.readouterr().out


def test_a_set_that_broken_trials_kept_large_is_said_to_be_so(capsys):
    trials = [{"changes": [name], "outcome": "broken"} for name in "ab"]
    found = {"culprits": ["a", "b"], "others_pass": True, "others": "pass", "trials": trials}
    _print({"verdict": "drift", "findings": [], "causes": [], "bisection": found})
    assert "could not be judged: 2; fewer of these packages may make it" in capsys.readouterr().out


def test_an_inconclusive_trial_is_trained_once_more():
    machine, upgrade = bisected([UNMEASURED, AS_BEFORE])
    assert upgrade.bisection.culprits == (CHANGES[1],)
    assert upgrade.bisection.complement == "pass"
    assert machine.asked.count((CHANGES[0],)) == 2


LOST = {
    "hung": [UnavailableError("did not end in time", where="trainer", key="timeout_seconds")],
    "unreadable record": [CorruptDataError("is no JSON", where="record.json")],
    "no second look": [SLOWER, None],
}


@pytest.mark.parametrize("alone", LOST.values(), ids=LOST)
def test_one_lost_trial_does_not_lose_the_bisection(alone):
    machine, upgrade = bisected(alone)
    assert upgrade.bisection.culprits == (CHANGES[1],)
    assert dict(upgrade.bisection.trials)[(CHANGES[0],)] == "broken"
    assert any("did not" in line or "is no JSON" in line for line in machine.said)


def test_a_full_disk_ends_the_bisection():
    with pytest.raises(DiskFullError, match="no room"):
        bisected([DiskFullError("no room")])
