"""The throughput has one owner: the gate while the history learns, the history afterwards; no large drop passes."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from plumbline.judge.history.metrics import extended, row_of
from plumbline.night.rounds import Round
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.night_findings import apply_nights, past_nights
from plumbline.night.rounds.nights import History, decide_nights, night_reruns
from plumbline.night.rounds.plan import MAIN, RERUN, Assignment
from plumbline.report.decisions import REASON_TEXTS
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.series import NightRow, SeriesFile
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import Finding, PlatformResult, worst
from tests.kept_results import keep
from tests.unit.night.rounds.test_nights import BASE, BEGIN, loaded, suite_of
from tests.unit.night.rounds.test_software import _with

HERE = BASE.fingerprint
ELSEWHERE = HERE.replace(cpu=HERE.cpu.replace(model="another processor"))


def suite_with(num_platforms: int, num_workloads: int, **gates: object) -> Suite:
    content = suite_of(Path("/x"), **gates).to_json()
    (workload,), (platform,) = content["workloads"].values(), content["platforms"].values()
    content["workloads"] |= {f"w{number}": workload for number in range(1, num_workloads)}
    content["platforms"] |= {f"p{number}": platform for number in range(1, num_platforms)}
    return Suite.model_validate(content)


LARGE = suite_with(5, 4)


def nights(count: int, sd: float) -> list[NightRow]:
    first = row_of(loaded(0, 0.0).record)
    assert first is not None
    rate = first.metrics["throughput"] or math.nan
    return [
        first.model_copy(
            update={
                "record": f"n{index:04d}", "round": f"round-{index}", "time": BEGIN + timedelta(days=index),
                "metrics": {"throughput": rate / (1 + slower)},
            }
        )
        for index, slower in enumerate(np.random.default_rng(1).normal(0, sd, count).tolist())
    ]  # fmt: skip


def tonight(  # noqa: PLR0917 - one night's numbers
    num_nights: int, sd: float, drop: float, rerun: float | None = None, accepted: float = 0.0,
    suite: Suite = LARGE, before: Fingerprint = HERE, others: tuple[Finding, ...] = (), **evidence: object,
) -> PlatformResult:  # fmt: skip
    """Judge a night as a round does; `drop`, `rerun` and `accepted` are relative slow-downs of the step."""
    rerun = drop if rerun is None else rerun
    series = extended(SeriesFile(suite="nightly", platform="left"), nights(num_nights, sd))
    baselines = {"unit": {"left": _with(loaded(0, accepted), before)}}
    round_ = Round(f"round-{num_nights}", suite, {"unit": BASE.spec})
    main = loaded(num_nights, drop)
    main = _with(main, main.record.fingerprint, **evidence)
    found = GatheredRecords({Assignment("left", "unit", MAIN): main})
    asked = night_reruns(decide_nights(round_, found, History({"left": series}), baselines))
    for one in {*asked, Assignment("left", "unit", RERUN)}:
        found.records[one] = loaded(num_nights, rerun, one.what)
    decided = decide_nights(round_, found, History({"left": series}), baselines)
    judged = judge_harvest(round_, found, baselines, {}, past_nights(decided, 0.02))["unit"]["left"]
    verdict = worst([judged.verdict, *(finding.outcome for finding in others)])
    judged = judged.replace(verdict=verdict, findings=(*judged.findings, *others))
    return keep(apply_nights({"unit": {"left": judged}}, decided, 0.02)["unit"]["left"])


def _outcomes(result: PlatformResult) -> dict[str, str]:
    throughput = ("speed.throughput", "history.throughput")
    return {finding.check: finding.outcome for finding in result.findings if finding.check in throughput}


@pytest.mark.parametrize("num_nights", [1, 3, 4])
def test_the_gate_owns_the_throughput_while_the_history_learns(num_nights: int) -> None:
    assert _outcomes(tonight(num_nights, 0.01, 0.1)) == {"speed.throughput": "drift"}
    assert _outcomes(tonight(num_nights, 0.01, 0.0)) == {"speed.throughput": "pass"}


@pytest.mark.parametrize(
    ("num_nights", "sd", "drop"),
    [(5, 0.005, 0.15), (5, 0.01, 0.3), (5, 0.02, 0.4), (6, 0.02, 0.2), (8, 0.01, 0.07), (8, 0.02, 0.15),
     (10, 0.02, 0.1), (15, 0.02, 0.07), (20, 0.02, 0.07), (40, 0.01, 0.07)],
)  # fmt: skip
def test_a_drop_beyond_the_limit_never_passes_however_few_nights_there_are(
    num_nights: int, sd: float, drop: float
) -> None:
    result = tonight(num_nights, sd, drop)
    assert _outcomes(result) == {"history.throughput": "inconclusive"}
    assert result.verdict == "inconclusive"
    assert REASON_TEXTS["machine"] in result.findings[-1].detail


def test_a_drop_against_a_lucky_record_is_no_drop_for_the_nights() -> None:
    # The accepted record was 6% quicker than the nights; tonight is one of them.
    for count in (15, 30):
        result = tonight(count, 0.01, 0.0, accepted=-0.06)
        assert _outcomes(result) == {"history.throughput": "pass"}
        assert (result.verdict, result.causes) == ("pass", ())


def test_the_history_owns_nothing_else() -> None:
    others = tuple(
        Finding(check=check, outcome=outcome, observed=0.06, limit=0.05, detail="d")
        for check, outcome in (("speed.memory", "drift"), ("learn.accuracy", "inconclusive"), ("speed.steps", "pass"))
    )
    result = tonight(30, 0.01, 0.0, accepted=-0.06, others=others)
    assert _outcomes(result) == {"history.throughput": "pass"}
    assert all(other in result.findings for other in others)
    assert result.verdict == "drift"


def test_the_history_withdraws_no_cause_of_another_check() -> None:
    """A failed self-check names the software, as a slow night may; the throughput is the history's alone."""
    result = tonight(30, 0.01, 0.1, selfcheck={"verdict": "drift", "at": "loss"})
    assert _outcomes(result) == {"history.throughput": "inconclusive"}
    assert [(cause.code, cause.sure) for cause in result.causes] == [("software", "confirmed")]


def test_a_different_machine_class_is_judged_by_its_own_nights_alone() -> None:
    assert _outcomes(tonight(6, 0.005, 0.0, before=ELSEWHERE)) == {"history.throughput": "pass"}
    assert _outcomes(tonight(3, 0.02, 0.2, before=ELSEWHERE)) == {"speed.throughput": "inconclusive"}


def test_few_questions_pass_no_drop_beyond_the_limit() -> None:
    suite = suite_with(1, 1, questions_a_year=1.0)
    assert all(tonight(40, 0.01, drop, suite=suite).verdict == "inconclusive" for drop in (0.1, 0.6))


@pytest.mark.parametrize("questions", [0.99, 1e-6, 1e-321])
def test_fewer_questions_than_one_a_year_are_refused(questions: float) -> None:
    with pytest.raises(ValidationError, match="questions_a_year"):
        suite_of(Path("/x"), questions_a_year=questions)
