"""Verdict of a round: quorum, unavailable platforms, several workloads, headline."""

from __future__ import annotations

import pytest

from plumbline.judge.rounds import rerun_problem
from plumbline.night.rounds import Round
from plumbline.night.rounds.gathered import Absence
from plumbline.night.rounds.outcome import absent_result, headline, join, sum_up
from plumbline.night.rounds.plan import Assignment, night_of
from plumbline.records import LoadedRecord
from plumbline.schema.fact import fact
from plumbline.schema.spec import RunSpec
from plumbline.schema.verdict import Cause, Finding, Outcome, PlatformResult
from tests.kept_results import kept
from tests.said import said
from tests.unit.judge.conftest import spec
from tests.unit.judge.made_speed import only
from tests.unit.suites import suite_of

headline, join, sum_up = kept(headline), kept(join), kept(sum_up)

PASS = PlatformResult(verdict="pass", findings=(Finding(check="probe.forward", outcome="pass"),), accuracy=0.9)
DRIFT = PlatformResult(
    verdict="drift",
    findings=(
        Finding(check="data.rows", outcome="drift", observed=0.01, limit=0.0, unit="share", detail="row 115 differs"),
    ),
    causes=(Cause(code="data.labels", sure="confirmed", why="the labels of 3 rows differ"),),
)
GONE = absent_result(Absence("no worker came online within 12 s"))
UNFIT = absent_result(Absence("/opt/env: torch: is not installed", is_misconfigured=True))
BROKEN = absent_result(Absence("part x does not match", broken=True))


def make_round(
    quorum: int = 2, names: tuple[str, ...] = ("aws", "azure", "gcp"), *, optional: tuple[str, ...] = ()
) -> Round:
    suite = suite_of(*names, dispatch={"quorum": quorum})
    platforms = {name: each.replace(optional=name in optional) for name, each in suite.platforms.items()}
    return Round("20261120-020000-abc", suite.replace(platforms=platforms), {})


@pytest.mark.parametrize(
    ("results", "quorum", "verdict"),
    [
        ((PASS, PASS, PASS), 2, "pass"),
        ((PASS, PASS, GONE), 2, "inconclusive"),
        ((GONE, PASS, PASS), 2, "inconclusive"),
        ((PASS, PASS, GONE), 3, "inconclusive"),
        ((PASS, GONE, GONE), 2, "inconclusive"),
        ((GONE, GONE, GONE), 1, "inconclusive"),
        ((PASS, DRIFT, GONE), 2, "drift"),
        ((PASS, DRIFT, BROKEN), 2, "invalid"),
        ((PASS, BROKEN, GONE), 2, "invalid"),
    ],
)
def test_the_verdict_of_a_round(results: tuple[PlatformResult, ...], quorum: int, verdict: Outcome) -> None:
    round_ = make_round(quorum)
    assert sum_up(round_, dict(zip(round_.suite.platforms, results, strict=True))).verdict == verdict


def test_an_unavailable_platform_is_inconclusive_and_says_why() -> None:
    assert (GONE.verdict, GONE.unavailable) == ("inconclusive", "no worker came online within 12 s")
    assert (BROKEN.verdict, BROKEN.unavailable) == ("invalid", "")
    round_ = make_round()
    verdict = sum_up(round_, {"aws": PASS, "azure": PASS, "gcp": GONE})
    assert verdict.verdict == "inconclusive"
    assert verdict.notes == ("gcp is unavailable: no worker came online within 12 s",)
    assert headline(verdict).startswith("inconclusive: gcp: ")


@pytest.mark.parametrize(
    ("results", "quorum", "verdict"),
    [
        ((PASS, PASS, GONE), 2, "pass"),
        ((PASS, PASS, GONE), 3, "inconclusive"),
        ((PASS, DRIFT, GONE), 2, "drift"),
        ((GONE, PASS, GONE), 1, "inconclusive"),
        ((PASS, PASS, DRIFT), 2, "drift"),
        ((PASS, PASS, BROKEN), 2, "invalid"),
    ],
)
def test_an_optional_platform_may_be_missing_and_may_not_be_wrong(
    results: tuple[PlatformResult, ...], quorum: int, verdict: Outcome
) -> None:
    round_ = make_round(quorum, optional=("gcp",))
    summed = sum_up(round_, dict(zip(round_.suite.platforms, results, strict=True)))
    assert summed.verdict == verdict
    assert [name for name, result in summed.platforms.items() if result.optional] == ["gcp"]


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((PASS, PASS, UNFIT), 2),
        ((PASS, UNFIT, UNFIT), 2),
        ((PASS, UNFIT, GONE), 3),
        ((PASS, GONE, PASS), 3),
        ((PASS, DRIFT, UNFIT), 1),
        ((PASS, BROKEN, UNFIT), 4),
        ((PASS, PASS, PASS), 0),
    ],
)
def test_a_platform_that_is_not_set_up_is_a_usage_error(results: tuple[PlatformResult, ...], code: int) -> None:
    round_ = make_round()
    summed = sum_up(round_, dict(zip(round_.suite.platforms, results, strict=True)))
    assert summed.exit_code == code
    joined = join({"bert": results[1], "mlm": results[2]})
    assert sum_up(round_, {"aws": PASS, "azure": joined, "gcp": PASS}).exit_code == code
    optional = sum_up(make_round(optional=("gcp",)), {"aws": PASS, "azure": PASS, "gcp": UNFIT})
    assert (optional.verdict, optional.exit_code) == ("pass", 0)


def test_a_round_says_in_a_field_that_its_quorum_failed() -> None:
    results = {"aws": PASS, "azure": PASS, "gcp": GONE}
    assert sum_up(make_round(3, optional=("gcp",)), results).quorum_failed
    assert not sum_up(make_round(2, optional=("gcp",)), results).quorum_failed


@pytest.mark.parametrize(("seen", "verdict"), [(DRIFT, "drift"), (BROKEN, "invalid"), (PASS, "inconclusive")])
def test_what_one_workload_shows_stands_though_another_left_no_record(seen: PlatformResult, verdict: Outcome) -> None:
    azure = join({"bert": seen, "mlm": GONE})
    output = sum_up(make_round(), {"aws": PASS, "azure": azure, "gcp": PASS})
    assert output.verdict == verdict
    assert output.notes == ("azure is unavailable: mlm: no worker came online within 12 s",)
    assert headline(output).startswith(f"{verdict}: azure: ")
    assert azure.workloads == {"bert": seen.verdict, "mlm": "inconclusive"}
    assert azure.absent == {"mlm": "no worker came online within 12 s"}


def test_several_workloads_make_one_result_whose_checks_say_which() -> None:
    joined = join({"bert": PASS, "mlm": DRIFT})
    assert joined.verdict == "drift"
    assert [finding.check for finding in joined.findings] == ["bert.probe.forward", "mlm.data.rows"]
    assert said(joined.causes[0].why) == "mlm: the labels of 3 rows differ"
    assert [item.workload for item in (*joined.findings, *joined.causes)] == ["bert", "mlm", "mlm"]
    alone = join({"bert": PASS})
    assert ([finding.check for finding in alone.findings], alone.verdict) == (["probe.forward"], "pass")


def test_names_of_rounds_tell_the_night() -> None:
    assert night_of("20261120-020000-abc") == "2026-11-20"
    assert night_of("mine") == "mine"


def test_the_headline_has_the_first_cause_and_the_first_finding_alone() -> None:
    second = Cause(code="software", sure="likely", why="torch changed")
    found = (*DRIFT.findings, Finding(check="learn.loss", outcome="drift", observed=0.5, limit=0.1))
    result = DRIFT.replace(causes=(*DRIFT.causes, second), findings=found)
    verdict = sum_up(make_round(), {"aws": PASS, "azure": result, "gcp": PASS})
    assert headline(verdict) == (
        "drift: azure: data.labels (confirmed), the labels of 3 rows differ; "
        "data.rows 0.01 against a limit of 0 share, row 115 differs"
    )


def test_reruns_and_an_ab_measure_the_speed_alone() -> None:
    """Windows and checks judge nothing there, and need time and memory."""
    probe, speed = {"steps": 4, "evaluation_rows": 8}, {"steps": 10}
    both, slow = (spec().replace(probe=part, speed=speed) for part in (probe, None))
    for made, what, parts in (
        (both, "main", ("probe", "speed")), (both, "rerun", ("speed",)), (both, "rerun-2", ("speed",)),
        (both, "ab", ("speed",)), (slow, "rerun", ("speed",)), (spec(), "rerun", ("probe",)),
    ):  # fmt: skip
        round_ = Round("20261120-020000-abc", make_round().suite, {"w": made})
        ordered = round_.order(Assignment("aws", "w", what), 0).spec
        assert ordered.parts == parts
        assert ordered.speed is None or bool(ordered.speed.checks) is (what == "main")


def test_an_ordered_rerun_is_comparable_with_its_night() -> None:
    def ran(spec: RunSpec) -> LoadedRecord:
        made = only()
        return LoadedRecord(made.record.replace(spec=spec.to_json(), spec_sha256=spec.digest), made.folder)

    night = spec().replace(speed={"steps": 100})
    round_ = Round("20261120-020000-abc", make_round().suite, {"w": night})
    ordered = ran(round_.order(Assignment("aws", "w", "rerun"), 0).spec)
    assert rerun_problem(ran(night), ordered) == ""
    for other in (night.replace(batch_size=8), night.replace(speed={"steps": 100, "precision": "fp32"})):
        assert rerun_problem(ran(other), ordered) == fact("rerun.different-spec")
