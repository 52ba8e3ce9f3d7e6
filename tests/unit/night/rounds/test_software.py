"""The A/B is ordered where the baseline's environment can be built, and its answer names the cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plumbline.judge.history.metrics import METRICS, row_of
from plumbline.judge.history.segments import lines_of
from plumbline.night.central.series import extend_series, read_series
from plumbline.night.rounds import Round
from plumbline.night.rounds.gathered import Absence, GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.night_findings import apply_nights, past_nights
from plumbline.night.rounds.nights import decide_nights, limits_of, night_abs, night_reruns
from plumbline.night.rounds.plan import AB, MAIN, Assignment
from plumbline.night.rounds.series import read_history, write_nights
from plumbline.night.rounds.software import machine_cause, software_change
from plumbline.records import LoadedRecord
from plumbline.report.summary import summarise
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.experiment import AbEvidence, AbOrder, AbRun
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.suite import Dispatch
from plumbline.schema.verdict import PlatformResult, RoundVerdict
from tests.kept_results import keep
from tests.said import said
from tests.unit.judge.test_speed import SLOW, speed
from tests.unit.night.rounds.test_nights import BASE, BEGIN, Nights, loaded, noise

BEFORE = BASE.fingerprint.replace(packages={"torch": "2.12.0", "numpy": "2.2.0", "plumbline-training": "0.1"})
AFTER = BEFORE.replace(packages={"torch": "2.13.0", "numpy": "2.2.0", "einops": "0.8", "plumbline-training": "0.1"})
PAST = 40


def _change(before: Fingerprint | None, after: Fingerprint, **dispatch: object):
    return keep(software_change(before, after, Dispatch.model_validate(dispatch), same_for_weeks=False))


def test_the_order_puts_back_each_package_that_differs() -> None:
    change = _change(BEFORE, AFTER, ab_blocks=5, ab_seconds=60)
    assert change.state == "can-differ"
    assert change.order == AbOrder(packages=(("einops", ""), ("torch", "2.12.0")), num_blocks=5, seconds=60)
    assert change.changes == ("einops absent → 0.8", "torch 2.12.0 → 2.13.0")
    assert _change(BEFORE, BEFORE).state == "equal"


@pytest.mark.parametrize(
    ("before", "after", "dispatch", "why"),
    [
        (None, AFTER, {}, "without an accepted baseline"),
        (BEFORE, AFTER.replace(python="3.13.1"), {}, "ran on Python"),
        (BEFORE, BEFORE.replace(driver="580.1"), {}, "the baseline's driver cannot be restored"),
        (BEFORE, AFTER, {"ab_blocks": 0}, "the suite turns the A/B off"),
        (BEFORE.replace(packages={"torch": "2.12 --pre"}), AFTER, {}, "no valid name or version"),
    ],
)
def test_where_no_ab_can_be_ordered_the_answer_says_why(
    before: Fingerprint | None, after: Fingerprint, dispatch: dict[str, object], why: str
) -> None:
    change = _change(before, after, **dispatch)
    assert (change.state, change.order) == ("unavailable", None)
    assert why in change.note


def test_what_packages_do_not_put_back_is_said() -> None:
    change = _change(BEFORE, AFTER.replace(driver="580.1"))
    assert change.state == "can-differ"
    assert change.note == "not restored: driver"


def _with(record: LoadedRecord, fingerprint: Fingerprint, **evidence: object) -> LoadedRecord:
    changed = record.record.evidence.replace(**evidence)
    return LoadedRecord(record.record.replace(fingerprint=fingerprint, evidence=changed), record.folder, record.arrays)


def _evidence(order: AbOrder, software_loss: float, blocks: int = 6, unavailable: str = "") -> AbEvidence:
    """A machine that is slow tonight by 10%, whatever it runs."""
    generator = np.random.default_rng(3)
    runs = [
        AbRun(
            block=block,
            is_tonight=is_tonight,
            metrics={"throughput": 90 * float(np.exp(generator.normal(0, 0.003) - software_loss * is_tonight))},
        )
        for block in range(blocks)
        for is_tonight in order.block(block)
    ]
    return AbEvidence(order_sha256=order.digest, runs=() if unavailable else tuple(runs), unavailable=unavailable)


Answer = Callable[[AbOrder], AbEvidence | None]


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path)
    rows = [row_of(_with(loaded(index, value), BEFORE).record) for index, value in enumerate(noise(3, PAST))]
    extend_series(nights.central, "nightly", "left", [row for row in rows if row is not None])
    return nights


def _tonight(nights: Nights, answer: Answer) -> tuple[PlatformResult, list[Assignment]]:
    """Judge a night that lost 10%, as a round does: reruns, then the A/B."""
    baseline = _with(loaded(0, 0.0), BEFORE)
    baselines = {"unit": {"left": baseline}}
    round_ = Round(f"round-{PAST}", nights.suite, {"unit": BASE.spec})
    found = GatheredRecords()
    found.records[Assignment("left", "unit", MAIN)] = _with(loaded(PAST, 0.1), AFTER)
    history = read_history(round_, nights.central)
    decided = decide_nights(round_, found, history, baselines)
    allowed = limits_of(nights.suite)
    assert not night_abs(decided, allowed), "reruns come first"
    for assignment in night_reruns(decided):
        found.records[assignment] = _with(loaded(PAST, 0.1, assignment.what), AFTER)
    decided = decide_nights(round_, found, history, baselines)
    asked = list(night_abs(decided, allowed))
    for assignment in asked:
        assert assignment.ab is not None
        evidence = answer(assignment.ab)
        if evidence is None:
            found.absent[assignment] = Absence("no worker took it")
        else:
            found.records[assignment] = _with(loaded(PAST, 0.1, AB), AFTER, ab=evidence)
    decided = decide_nights(round_, found, history, baselines)
    assert not night_abs(decided, allowed), "one A/B a night"
    result = apply_nights(judge_harvest(round_, found, baselines, {}, past_nights(decided, 0.02)), decided, 0.02)[
        "unit"
    ]["left"]
    verdict = RoundVerdict(round=round_.id, suite="nightly", verdict="drift", platforms={"left": result})
    write_nights(round_, verdict, decided, baselines, central=nights.central, now=BEGIN)
    return keep(result), asked


def _finding(result: PlatformResult):
    return next(one for one in result.findings if one.check == "history.throughput")


def test_a_difference_on_one_machine_is_the_software(nights: Nights) -> None:
    result, asked = _tonight(nights, lambda order: _evidence(order, 0.1))
    assert [(one.platform, one.what) for one in asked] == [("left", AB)]
    assert _finding(result).outcome == "drift"
    (cause,) = [one for one in result.causes if one.code == "software"]
    assert (cause.sure, cause.suspects) == ("confirmed", ("einops absent → 0.8", "torch 2.12.0 → 2.13.0"))
    assert "an A/B of 24 runs on one machine shows a difference" in said(cause.tried)[0]
    assert "an interleaved A/B on one machine shows the loss: the software causes it" in said(_finding(result).detail)


def test_no_difference_on_one_machine_is_the_machine_and_no_pass(nights: Nights) -> None:
    result, _ = _tonight(nights, lambda order: _evidence(order, 0.0))
    finding = _finding(result)
    assert finding.outcome == "inconclusive"
    assert "the software does not cause it: the cause is this night's machine" in said(finding.detail)
    # A gate that read the software from signs alone is corrected.
    assert not [one for one in result.causes if one.code == "software"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda order: _evidence(order, 0.0, unavailable="torch==2.12.0: no matching distribution"),
         "the baseline's environment cannot be built any more: torch==2.12.0: no matching distribution"),
        (lambda order: _evidence(order, 0.1, blocks=3), "no A/B separates software from machine"),
        (lambda _: None, "the A/B left no record: no worker took it"),
    ],
)  # fmt: skip
def test_an_ab_without_an_answer_says_so_and_is_no_pass(nights: Nights, answer: Answer, why: str) -> None:
    result, _ = _tonight(nights, answer)
    assert _finding(result).outcome == "inconclusive"
    assert why in said(_finding(result).detail)


def test_the_history_says_what_the_round_has_decided(nights: Nights) -> None:
    _tonight(nights, lambda order: _evidence(order, 0.1))
    (line,) = [
        line
        for line in lines_of(read_series(nights.central, "nightly", "left"), METRICS, {})
        if line.metric.name == "throughput"
    ]
    summary = summarise(line, limits_of(nights.suite))
    assert (summary.verdict, summary.reason) == ("drift", "software")
    assert "no experiment has tested it yet" not in summary.sentence
    assert "an interleaved A/B on one machine shows the loss" in summary.sentence


def test_runs_that_a_worker_made_up_decide_nothing(nights: Nights) -> None:
    def worthless(order: AbOrder) -> AbEvidence:
        runs = _evidence(order, 0.1).runs
        return AbEvidence(
            order_sha256=order.digest,
            runs=tuple(run.replace(metrics={"throughput": -1.0 if run.is_tonight else None}) for run in runs),
        )

    result, _ = _tonight(nights, worthless)
    assert _finding(result).outcome == "inconclusive"


@pytest.mark.parametrize("code", SLOW)
def test_the_machine_is_named_where_the_signs_of_every_run_agree(code: str) -> None:
    baseline, slow = _measured(0, speed()), _measured(1, speed(**SLOW[code]))
    cause = machine_cause(baseline, [slow, slow])
    if code == "software":
        assert cause is None, "the A/B alone names the software"
        return
    assert cause is not None
    assert (cause.code, cause.sure) == (code, "likely")
    other = _measured(1, speed(**SLOW["loader" if code != "loader" else "transfer"]))
    assert machine_cause(baseline, [slow, other]) is None
    assert machine_cause(None, [slow]) is None


def _measured(index: int, evidence: SpeedEvidence) -> LoadedRecord:
    return _with(loaded(index, 0.0), BEFORE, speed=evidence.to_json())


def test_a_machine_that_stays_slow_is_drift_with_the_cause_that_its_signs_name(nights: Nights) -> None:
    baselines = {"unit": {"left": _measured(0, speed())}}
    verdicts = []
    for index in range(PAST, PAST + 12):
        record = _measured(index, speed(**SLOW["slow-device"]))
        round_ = Round(f"round-{index}", nights.suite, {"unit": BASE.spec})
        found = GatheredRecords({Assignment("left", "unit", MAIN): record})
        history = read_history(round_, nights.central)
        for assignment in night_reruns(decide_nights(round_, found, history, baselines)):
            found.records[assignment] = record
        decided = decide_nights(round_, found, history, baselines)
        result = apply_nights({"unit": {"left": PlatformResult(verdict="pass")}}, decided, 0.02)["unit"]["left"]
        verdict = RoundVerdict(round=round_.id, suite="nightly", verdict="pass", platforms={"left": result})
        write_nights(round_, verdict, decided, baselines, central=nights.central, now=BEGIN)
        verdicts.append(result.verdict)
        if result.verdict == "drift":
            break
    assert "pass" not in verdicts
    assert verdicts[-1] == "drift"
    assert [(one.code, one.sure) for one in result.causes] == [("slow-device", "likely")]


def test_an_ab_is_no_night_of_the_series(nights: Nights) -> None:
    _tonight(nights, lambda order: _evidence(order, 0.1))
    series = read_history(Round("x", nights.suite, {"unit": BASE.spec}), nights.central).series["left"]
    assert len(series) == PAST + 1
    assert all(name.endswith("-main") for name in series.record)


def test_the_keys_of_a_night_stay_as_they_are() -> None:
    """With other keys for the same environment, every series of a team would begin anew, by other software."""
    row = row_of(loaded(0, 0.0).record)
    assert row is not None
    assert (row.software, row.hardware) == ("2457de9608c21f9b", "m, 2 cores")
