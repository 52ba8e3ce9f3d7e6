"""A controller that wakes up after its successor has begun publishes nothing over it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.rounds.documents import Controller, check_claim, claim_round
from plumbline.schema.errors import SupersededError
from plumbline.schema.verdict import Outcome, RoundVerdict
from plumbline.upgrade.outcome import UpgradeOutcome, keep_outcome, read_outcome

SUITE, ROUND = "nightly", "20261123-020000-r"
FIRST, SECOND = Controller(flow_run="a", start=1), Controller(flow_run="a", start=2)


@pytest.fixture
def central(tmp_path: Path) -> CentralStore:
    return CentralStore(open_store(f"file://{tmp_path}"))


def verdict(outcome: Outcome) -> RoundVerdict:
    return RoundVerdict(round=ROUND, suite=SUITE, verdict=outcome, platforms={})


def test_a_round_of_this_name_of_a_different_suite_supersedes_nobody(central: CentralStore) -> None:
    claim_round(central, SUITE, ROUND, FIRST)
    claim_round(central, "weekly", ROUND, Controller(flow_run="b", start=1))
    check_claim(central, SUITE, ROUND, FIRST)


def test_the_verdict_of_an_earlier_start_does_not_replace_that_of_the_later_one(central: CentralStore) -> None:
    claim_round(central, SUITE, ROUND, FIRST)
    claim_round(central, SUITE, ROUND, SECOND)
    central.put_round(verdict("pass"), partial(check_claim, central, SUITE, ROUND, SECOND))
    with pytest.raises(SupersededError, match="a later start of its controller continues this round"):
        central.put_round(verdict("inconclusive"), partial(check_claim, central, SUITE, ROUND, FIRST))
    assert central.get_round(SUITE, ROUND).verdict == "pass"


def test_a_later_start_that_publishes_between_check_and_write_wins(central: CentralStore) -> None:
    claim_round(central, SUITE, ROUND, FIRST)
    checked = []

    def check() -> None:
        check_claim(central, SUITE, ROUND, FIRST)
        checked.append(True)
        claim_round(central, SUITE, ROUND, SECOND)
        central.put_round(verdict("pass"), partial(check_claim, central, SUITE, ROUND, SECOND))

    with pytest.raises(SupersededError):
        central.put_round(verdict("drift"), check)
    assert (checked, central.get_round(SUITE, ROUND).verdict) == ([True], "pass")


def test_an_earlier_start_that_wakes_before_its_claim_does_not_take_the_round_back(central: CentralStore) -> None:
    claim_round(central, SUITE, ROUND, SECOND)
    with pytest.raises(SupersededError):
        claim_round(central, SUITE, ROUND, FIRST)
    check_claim(central, SUITE, ROUND, SECOND)


def test_a_start_that_ends_before_its_claim_is_not_superseded_by_the_start_before_it(central: CentralStore) -> None:
    claim_round(central, SUITE, ROUND, FIRST)
    check_claim(central, SUITE, ROUND, SECOND)


def test_a_new_run_of_the_same_round_takes_it_over(central: CentralStore) -> None:
    claim_round(central, SUITE, ROUND, SECOND)
    other = Controller(flow_run="b", start=1)
    claim_round(central, SUITE, ROUND, other)
    check_claim(central, SUITE, ROUND, other)
    with pytest.raises(SupersededError):
        check_claim(central, SUITE, ROUND, SECOND)


def test_the_outcome_of_an_upgrade_is_that_of_the_later_start_too(central: CentralStore) -> None:
    outcome = UpgradeOutcome(
        upgrade=ROUND, suite="nightly", workload="w", candidate="lock", candidate_sha256="0" * 64, verdict="pass",
        platforms={},
    )  # fmt: skip
    for controller in (FIRST, SECOND):
        claim_round(central, SUITE, ROUND, controller)
    with pytest.raises(SupersededError):
        keep_outcome(central, outcome, partial(check_claim, central, SUITE, ROUND, FIRST))
    assert read_outcome(central, SUITE, ROUND) is None
