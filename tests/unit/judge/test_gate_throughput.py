"""Gate of the throughput: the lost share, its noise, its rerun, and what is not compared."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.gates.throughput import noise_of
from plumbline.judge.gates.throughput import speed as throughput
from plumbline.judge.gates.throughput_causes import lost_share
from plumbline.judge.pair import Pair
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.step_log import StepLog
from plumbline.schema.suite import Gates
from tests.said import said

from .conftest import make_record, other_kernel
from .made_records import with_evidence
from .made_speed import computed, only, run, speed

# The share of throughput that was lost.


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (run(80.0), run(60.0), 0.25),
        (run(60.0), run(75.0), -0.25),
        (run(80.0), run(80.0), 0.0),
        (run(0.5), run(0.25), 0.5),
        (run(80.0, wall_seconds=3.0), run(60.0, wall_seconds=9.0), 0.25),
        (run(None), run(60.0), None),
        (run(80.0), run(None), None),
        (run(0.0), run(60.0), None),
        (run(80.0), run(0.0), None),
        (run(80.0), run(-1.0), None),
        (run(-1.0), run(80.0), None),
        (run(0.25), run(0.5), -1.0),
    ],
)
def test_the_lost_share_is_of_the_baselines_throughput(
    before: SpeedEvidence, after: SpeedEvidence, lost: float | None
) -> None:
    found = lost_share(before, after)
    assert found == (None if lost is None else pytest.approx(lost, abs=1e-12))


@pytest.mark.parametrize(
    ("changes", "noise"),
    [
        ({"step_seconds": 0.5, "step_seconds_quartiles": (0.4, 0.7), "steps": 25}, 1.2533 * (0.3 / 1.349) / 0.5 / 5),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 4}, 1.2533 * (0.3 / 1.349) / 2 / 2),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 1}, 1.2533 * (0.3 / 1.349) / 2),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.7, 0.4), "steps": 4}, 0.0),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 0}, 0.0),
        ({"step_seconds": 0.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 4}, 0.0),
        ({"step_seconds": None, "step_seconds_quartiles": (0.4, 0.7), "steps": 4}, 0.0),
        ({"step_seconds": 2.0, "steps": 4}, 0.0),
    ],
)
def test_noise_follows_from_quartiles_and_the_number_of_steps(changes: dict[str, Any], noise: float) -> None:
    assert noise_of(run(**changes)) == pytest.approx(noise, rel=1e-9)


# The gate itself.


def pair_of(before: SpeedEvidence | None, after: SpeedEvidence | None, **changes: Any) -> Pair:
    left, right = with_evidence(make_record(), speed=before), with_evidence(make_record(**changes), speed=after)
    return Pair(left, right)


@pytest.mark.parametrize(
    ("rate", "outcome", "asks"),
    [(150.0, "pass", False), (100.0, "pass", False), (95.01, "pass", False), (94.99, "inconclusive", True)],
)
def test_a_drop_beyond_the_limit_asks_for_a_rerun(rate: float, outcome: str, asks: bool) -> None:
    findings, causes = throughput(pair_of(run(100.0), run(rate)), Gates())
    assert [(finding.outcome, finding.needs_rerun) for finding in findings] == [(outcome, asks)]
    assert findings[0].observed == pytest.approx(1 - rate / 100)
    assert causes == []


@pytest.mark.parametrize(
    ("noisy", "errors", "outcome"),
    [(0, 3.0, "inconclusive"), (0, 2.0, "drift"), (1, 4.0, "inconclusive"), (1, 3.0, "drift")],
)
def test_two_drops_have_to_exceed_the_noise_of_all_runs(noisy: int, errors: float, outcome: str) -> None:
    """A noisy drop asks for a rerun, and the two runs of a slow night have half of one's variance."""
    sides = [run(100.0), run(90.0)]
    # The quartiles make a standard error of 4%.
    spread = 0.04 * 0.25 * 8 * 1.349 / 1.2533
    sides[noisy] = sides[noisy].replace(step_seconds_quartiles=(0.25, 0.25 + spread))
    gates = Gates(throughput_standard_errors=errors)
    assert throughput(pair_of(sides[0], sides[1]), gates)[0][0].needs_rerun
    again = run(90.0) if not noisy else run(90.0).replace(step_seconds_quartiles=(0.25, 0.25 + spread))
    findings, _ = throughput(pair_of(sides[0], sides[1]), gates, confirms=again)
    assert findings[0].outcome == outcome
    assert not findings[0].needs_rerun


@pytest.mark.parametrize(
    ("again", "outcome", "observed"),
    [
        (100.0, "pass", 0.0),
        (96.0, "pass", 0.04),
        (80.0, "drift", 0.2),
        (50.0, "drift", 0.3),
        (None, "inconclusive", 0.3),
    ],
)
def test_a_rerun_decides_and_the_smaller_drop_is_reported(again: float | None, outcome: str, observed: float) -> None:
    findings, causes = throughput(pair_of(run(100.0), run(70.0)), Gates(), confirms=run(again))
    assert (findings[0].outcome, findings[0].needs_rerun) == (outcome, False)
    assert findings[0].observed == pytest.approx(observed)
    assert [cause.code for cause in causes] == (["unattributed"] if outcome == "drift" else [])


@pytest.mark.parametrize(
    ("first", "second", "outcome", "code"),
    [
        ({"foreign_cpu": 1.9, "own_cpu": 0.1}, {}, "inconclusive", None),
        ({}, {"foreign_cpu": 1.9, "own_cpu": 0.1}, "inconclusive", None),
        ({"foreign_cpu": 0.25}, {}, "drift", "unattributed"),
        ({"foreign_cpu": 0.1}, {}, "drift", "software"),
        ({"cpu_steal": 0.5}, {"cpu_steal": 0.5}, "drift", "contention"),
        ({"cpu_steal": 0.5}, {}, "inconclusive", None),
        ({"cpu_steal": 0.04}, {}, "drift", "unattributed"),
    ],
)
def test_an_excuse_holds_only_where_no_single_cause_is_clear(
    first: dict[str, float], second: dict[str, float], outcome: str, code: str | None
) -> None:
    before, slow = computed(1.0, own_cpu=1.0), (computed(1.5, **first), computed(1.6, **second))
    pair = pair_of(before, slow[0], fingerprint=other_kernel() | {"packages": {"torch": "9.9.9"}})
    findings, causes = throughput(pair, Gates(), confirms=slow[1])
    assert findings[0].outcome == outcome
    assert findings[0].observed == pytest.approx(1 / 3)
    assert [cause.code for cause in causes] == ([code] if code else [])


def test_machines_of_two_classes_are_not_compared_and_say_which() -> None:
    cores = {"cpu": {"model": "m", "isa": "AVX2", "num_cores": 8, "num_threads": 1}}
    findings, causes = throughput(pair_of(run(100.0), run(10.0), fingerprint=cores), Gates())
    assert (findings[0].outcome, causes) == ("inconclusive", [])
    assert said(findings[0].detail) == (
        "different machine classes: the reference ran on m, 2 cores, the candidate on m, 8 cores"
    )
    turned = pair_of(run(100.0), run(10.0), fingerprint=cores)
    findings, _ = throughput(Pair(turned.candidate, turned.reference), Gates())
    assert said(findings[0].detail) == (
        "different machine classes: the reference ran on m, 8 cores, the candidate on m, 2 cores"
    )
    unmeasured, _ = throughput(pair_of(run(100.0), run(None)), Gates())
    assert said(unmeasured[0].detail) == "no throughput was measured"


@pytest.mark.parametrize("sides", [(None, None), (None, run()), (run(), None)])
def test_a_part_that_was_not_measured_has_no_finding_unless_demanded(
    sides: tuple[SpeedEvidence | None, SpeedEvidence | None],
) -> None:
    assert throughput(pair_of(*sides), Gates()) == ([], [])
    findings, _ = throughput(pair_of(*sides), Gates(), demanded=True)
    assert [finding.outcome for finding in findings] == ["inconclusive"]


def test_throughput_that_was_not_asked_for_has_no_finding_and_a_drift_its_place() -> None:
    log = {name: getattr(speed(), name) for name in StepLog.model_fields}
    before, slow = (
        only(evidence=computed(seconds).replace(steps=100, **log, warmup_steps=16, wall_seconds=100 * seconds))
        for seconds in (1.0, 2.0)
    )
    assert compare(before, slow, throughput=False).findings == ()
    judgement = compare(before, slow, confirms=computed(2.0))
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.at) == ("throughput", "throughput")
    assert compare(before, slow).first_divergence is None
