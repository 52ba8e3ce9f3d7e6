"""Throughput: a drop needs two runs, and a cause consistent signs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plumbline.cli import two_records as command
from plumbline.cli.main import main
from plumbline.judge import compare, needs_rerun
from plumbline.judge.gates.throughput import CHECK
from plumbline.records import LoadedRecord
from plumbline.schema.errors import ExitCode
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.suite import Gates
from tests.said import said

from .conftest import make_record
from .made_speed import COMPUTE, SAMPLES, only, record, speed, times, upgraded

SLOW = {
    "loader": {"breakdown": {"data_wait": 0.02}},
    "transfer": {"breakdown": {"host_to_device": 0.02}},
    "software": {"breakdown": times(1.4, "forward", "backward")},
    "slow-device": {"breakdown": times(1.3, *COMPUTE), "rates": {"gemm_flops": 7e11, "gemm_flops_after": 7e11}},
    "throttling": {
        "breakdown": times(1.3, *COMPUTE),
        "rates": {"gemm_flops_after": 7e11},
        "samples": {"gpu_throttle_reasons": (0.0, 64.0, 64.0), "gpu_clock_mhz": (1500.0, 1000.0, 1000.0)},
    },
    "contention": {
        "breakdown": times(1.6, *COMPUTE),
        "samples": {"own_cpu": (0.6, 0.6, 0.6), "foreign_cpu": (1.5, 1.5, 1.5)},
    },
}


@pytest.mark.parametrize("code", SLOW)
def test_a_drop_seen_twice_is_drift_and_its_cause_is_likely(code: str) -> None:
    slow = speed(**SLOW[code])
    judgement = compare(record(speed()), upgraded(record(slow)), confirms=slow)
    assert judgement.verdict == "drift"
    # Two runs show the same signs, but no experiment restored a value: the cause stays likely.
    assert [(cause.code, cause.sure) for cause in judgement.causes] == [(code, "likely")]
    assert said(judgement.causes[0].evidence)


def slower(factor: float, **changes: Any) -> SpeedEvidence:
    """Return a run whose computation takes longer by this factor."""
    return speed(breakdown=times(factor, *COMPUTE), **changes)


@pytest.mark.parametrize(
    ("slow", "why"),
    [
        pytest.param(slower(1.12), "by the same software", id="quiet machine"),
        pytest.param(slower(1.43, samples={"own_cpu": (0.7,) * 3}), "by the same software", id="asleep"),
        pytest.param(slower(1.15, samples={"cpu_steal": (0.04,) * 3}), "does not explain", id="a little stolen"),
        pytest.param(
            slower(5.0, samples={"cpu_steal": (0.04,) * 3, "own_cpu": (0.2,) * 3}), "does not explain",
            id="asleep, a little stolen",
        ),
        pytest.param(
            slower(1.15, samples={"foreign_gpu_processes": (1.0,) * 3}), "does not explain", id="idle on the GPU"
        ),
        pytest.param(speed(breakdown={"communication": 0.03}), "other processes", id="slow link"),
    ],
)  # fmt: skip
def test_signs_that_do_not_explain_the_loss_name_no_cause(slow: SpeedEvidence, why: str) -> None:
    judgement = compare(record(speed()), record(slow), confirms=slow)
    assert judgement.verdict == "drift"
    (cause,) = judgement.causes
    assert (cause.code, cause.sure) == ("unattributed", "unattributed")
    assert why in said(cause.why)


def test_a_slow_gpu_is_the_device_and_no_contention() -> None:
    rates = {"gemm_flops": 8e11, "gemm_flops_after": 8e11}
    slow = slower(1.25, samples={"own_cpu": (0.85,) * 3}, rates=rates)
    (cause,) = compare(record(speed()), record(slow), confirms=slow).causes
    assert (cause.code, cause.sure) == ("slow-device", "likely")


def test_a_drop_seen_once_waits_for_its_rerun() -> None:
    judgement = compare(record(speed()), record(speed(**SLOW["loader"])))
    assert judgement.verdict == "inconclusive"
    assert needs_rerun(judgement)
    assert judgement.causes == ()


def test_a_loaded_machine_is_inconclusive_and_names_nothing() -> None:
    loaded = slower(1.5, samples={"foreign_cpu": (1.5, 1.6, 1.5), "own_cpu": (0.6, 0.6, 0.6)})
    judgement = compare(record(speed()), record(loaded), confirms=slower(1.1))
    assert judgement.verdict == "inconclusive"
    assert judgement.causes == ()
    assert not needs_rerun(judgement)


@pytest.mark.parametrize(
    ("own", "foreign", "factor", "verdict", "causes"),
    [(0.2, 1.75, 1.5, "inconclusive", []), (0.3, 1.7, 1.8, "drift", ["contention"])],
    ids=["other load explains a part", "other load explains most"],
)
def test_a_machine_that_is_busy_on_both_nights_accuses_no_device(
    own: float, foreign: float, factor: float, verdict: str, causes: list[str]
) -> None:
    """Load 21 on two cores: others use 1.83 of them, and tonight's microbenchmarks are slow as well."""
    busy = speed(samples={"own_cpu": (own,) * 3, "foreign_cpu": (foreign,) * 3, "load": (19.0,) * 3})
    samples = {"own_cpu": (0.17,) * 3, "foreign_cpu": (1.83,) * 3, "load": (21.0,) * 3}
    slow = slower(factor, samples=samples, rates={"gemm_flops": 4e11, "gemm_flops_after": 5e11})
    judgement = compare(record(busy), record(slow), confirms=slow)
    assert judgement.verdict == verdict
    assert [cause.code for cause in judgement.causes] == causes
    assert any("1.83 (of 2) instead of" in said(finding.detail) for finding in judgement.findings)


def loaded(lost: float, **samples: float) -> SpeedEvidence:
    """Return a run that lost this share of throughput under this load, `gemm` the GEMM's rate against before."""
    result = speed(1 / (1 - lost) - 1)
    rate = 1e12 * samples.pop("gemm", 1.0)
    return result.replace(
        samples=SAMPLES | {name: (value,) * 3 for name, value in samples.items()},
        microbenchmarks={"gemm_flops": rate, "gemm_flops_after": rate},
    )


@pytest.mark.parametrize(
    ("lost", "load", "verdict"),
    [
        # 5% are the suite's; 20% stolen leave 0.8 of the throughput, and 5% less than that is 0.76. Stolen are 0.275
        # cores of the 1.375 that were asked for.
        (0.235, {"cpu_steal": 0.275}, "inconclusive"),
        (0.245, {"cpu_steal": 0.275}, "drift"),
        # The training had one core of two, and now has a half: others run 1.39, and a tenth of a core is idle.
        (0.418, {"foreign_cpu": 1.39, "own_cpu": 0.5}, "inconclusive"),
        (0.425, {"foreign_cpu": 1.39, "own_cpu": 0.5}, "drift"),
        # No core is idle: what the training would do with the rest of the machine was not measured.
        (0.9, {"foreign_cpu": 1.5, "own_cpu": 0.5}, "inconclusive"),
        # One core of others leaves it its own.
        (0.06, {"foreign_cpu": 1.0, "own_cpu": 0.5}, "drift"),
        # One more process on the GPU takes half of it, if the device lost as much; an idle process takes nothing.
        (0.52, {"foreign_gpu_processes": 1.0, "gemm": 0.4}, "inconclusive"),
        (0.53, {"foreign_gpu_processes": 1.0, "gemm": 0.4}, "drift"),
        (0.06, {"foreign_gpu_processes": 1.0}, "drift"),
        # Two loads at once: 0.8 of 0.8, less 5%, is 0.608.
        (0.395, {"cpu_steal": 0.275, "memory_pressure": 0.2}, "drift"),
        (0.9, {"cpu_steal": 1.0, "own_cpu": 0.0, "foreign_cpu": 0.0}, "inconclusive"),
    ],
)
def test_foreign_load_excuses_its_own_share_and_no_more(lost: float, load: dict[str, float], verdict: str) -> None:
    slow = loaded(lost, **load)
    judgement = compare(record(speed()), record(slow), confirms=slow)
    assert judgement.verdict == verdict
    assert {cause.code for cause in judgement.causes} <= {"unattributed"}


def test_a_quota_that_explains_the_loss_is_its_cause() -> None:
    slow = loaded(0.235, cgroup_throttled=0.2)
    judgement = compare(record(speed()), record(slow), confirms=slow)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["throttling"])


def stalled(seconds: float) -> SpeedEvidence:
    """Return five steps of 70 ms with stalls of so many seconds."""
    plain, wall = speed(), 5 * speed().step_seconds + seconds
    return plain.replace(steps=5, wall_seconds=wall, samples_per_second=32 * 5 / wall)


def test_stalls_between_steps_are_no_pass() -> None:
    judgement = compare(record(stalled(0.0)), record(stalled(2.0)))
    assert judgement.verdict == "inconclusive"
    assert needs_rerun(judgement)
    assert compare(record(stalled(0.0)), record(stalled(2.0)), confirms=stalled(2.0)).verdict == "drift"


@pytest.mark.parametrize(("first", "second"), [("loader", "transfer"), ("transfer", "loader")])
def test_two_slow_runs_with_other_signs_are_unattributed(first: str, second: str) -> None:
    judgement = compare(record(speed()), record(speed(**SLOW[first])), confirms=speed(**SLOW[second]))
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == ["unattributed"]


def test_the_limit_is_the_suites() -> None:
    judged = [compare(record(speed()), record(speed(0.1)), Gates(throughput_drop=drop)) for drop in (0.05, 0.2)]
    assert [item.verdict for item in judged] == ["inconclusive", "pass"]


def bare(platform: str) -> LoadedRecord:
    """Return a record without a speed part."""
    made = make_record()
    return LoadedRecord(made.record.replace(platform=platform), made.folder, made.arrays)


OTHER = "different platform: throughput is compared with a platform's own past only"


@pytest.mark.parametrize(
    ("reference", "candidate", "why"),
    [
        pytest.param(record(speed()), record(speed(0.5), platform="right"), OTHER, id="platforms"),
        pytest.param(only(), only("right"), OTHER, id="platforms with a speed part alone"),
        pytest.param(make_record(), make_record(), "no speed part in the reference and the candidate", id="neither"),
        pytest.param(record(speed()), make_record(), "no speed part in the candidate", id="candidate"),
        pytest.param(make_record(), record(speed()), "no speed part in the reference", id="reference"),
    ],
)
def test_throughput_that_is_demanded_and_cannot_be_judged_is_inconclusive(
    reference: LoadedRecord, candidate: LoadedRecord, why: str
) -> None:
    judgement = compare(reference, candidate, throughput="demanded")
    (finding,) = (item for item in judgement.findings if item.check == CHECK)
    assert (finding.outcome, said(finding.detail), finding.observed) == ("inconclusive", why, None)
    assert judgement.verdict == "inconclusive"
    assert not needs_rerun(judgement)
    # A round demands nothing: there, such a pair has no finding on throughput.
    assert not [item for item in compare(reference, candidate).findings if item.check == CHECK]


def test_what_is_worse_than_a_throughput_that_cannot_be_judged_stays() -> None:
    judgement = compare(make_record(), make_record(noise={"layer.linear": 3e-7}), throughput="demanded")
    assert judgement.verdict == "drift"
    assert "inconclusive" in {finding.outcome for finding in judgement.findings}


@pytest.mark.parametrize(
    ("flags", "demanded"), [([], False), (["--throughput"], True), (["--rerun", "rerun"], True)], ids=str
)
def test_the_command_demands_throughput_where_a_flag_asks_for_it(
    flags: list[str], demanded: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {"baseline": only(), "slow": only("right", speed(0.5)), "rerun": only("right", speed(0.5))}
    monkeypatch.setattr(command, "load_record", lambda path: folders[path.name])
    assert main(["compare", "baseline", "slow", "--json", *flags]) == ExitCode.INCONCLUSIVE
    output = json.loads(capsys.readouterr().out)
    assert [item["detail"] for item in output["findings"]] == ([OTHER] if demanded else [])
    # Never a bare `inconclusive`: without the flag, a hint names the way to a verdict.
    assert [note["code"] for note in output["notes"] if note["code"] == "hint"] == ([] if demanded else ["hint"])


@pytest.mark.parametrize(
    ("rerun", "why"),
    [(only("left", speed(0.5)), "'left', the candidate is one of 'right'"), (bare("right"), "no speed part")],
    ids=["other platform", "no speed"],
)
def test_a_rerun_that_says_nothing_of_the_candidate_is_refused(
    rerun: LoadedRecord, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {"baseline": only("right"), "slow": only("right", speed(0.5)), "rerun": rerun}
    monkeypatch.setattr(command, "load_record", lambda path: folders[path.name])
    assert main(["compare", "baseline", "slow", "--rerun", "rerun"]) == ExitCode.USAGE
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(("steps", "exit_code"), [(100, ExitCode.PASS), (1, ExitCode.INCONCLUSIVE)])
def test_a_rerun_of_one_step_refutes_no_drop(
    steps: int, exit_code: ExitCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {
        "baseline": only(),
        "slow": only(evidence=speed(0.5)),
        "rerun": only(evidence=speed().replace(steps=steps)),
    }
    monkeypatch.setattr(command, "load_record", lambda path: folders[path.name])
    assert main(["compare", "baseline", "slow", "--rerun", "rerun"]) == exit_code
    assert ("the rerun lacked evidence" in capsys.readouterr().out) is (steps == 1)


def test_the_command_says_nothing_of_throughput_where_another_part_was_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "load_record", lambda _: record(speed()))
    assert main(["compare", "one", "other"]) == ExitCode.PASS
    assert "throughput" not in capsys.readouterr().out
