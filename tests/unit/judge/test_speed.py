"""Throughput: a drop needs two runs, and a cause consistent signs."""

from __future__ import annotations

import json

import pytest

from plumbline.cli import compare as command
from plumbline.cli.main import main
from plumbline.errors import ExitCode
from plumbline.judge import compare, needs_rerun
from plumbline.judge.gates.throughput import CHECK
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.suite import Gates

from .conftest import make_record
from .kept_verdicts import kept
from .made_speed import COMPUTE, SAMPLES, only, record, speed, times

compare = kept(compare)
needs_rerun = kept(needs_rerun)


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
    "contention": {"breakdown": times(1.6, *COMPUTE), "samples": {"own_cpu": (0.6, 0.6, 0.6)}},
}


@pytest.mark.parametrize("code", SLOW)
def test_a_drop_seen_twice_is_drift_and_its_cause_is_named(code: str) -> None:
    slow = speed(**SLOW[code])
    judgement = compare(record(speed()), record(slow), confirms=slow)
    assert judgement.verdict == "drift"
    assert [(cause.code, cause.sure) for cause in judgement.causes] == [(code, "confirmed")]
    assert judgement.causes[0].evidence


def test_a_wait_for_data_tells_what_the_disk_did() -> None:
    quiet = {"disk_busy": (0.02, 0.02), "io_pressure": (0.0, 0.0), "disk_read_bytes_per_second": (1e6, 1e6)}
    before = speed(samples=quiet, rates={"disk_read_bytes_per_second": 1e9, "disk_read_bytes_per_second_after": 1e9})
    busy = {"disk_busy": (0.9, 0.94), "io_pressure": (0.5, 0.5), "disk_read_bytes_per_second": (8e7, 8e7)}
    rates = {"disk_read_bytes_per_second": 1e8, "disk_read_bytes_per_second_after": 2e8}
    slow = speed(breakdown={"data_wait": 0.02}, samples=busy, rates=rates)
    (cause,) = compare(record(before), record(slow), confirms=slow).causes
    assert cause.code == "loader"
    assert any("busiest disk: 92% instead of 2%" in line for line in cause.evidence)
    assert any("80 MB/s instead of 1" in line for line in cause.evidence)
    assert any("lost 90% and 80%" in line for line in cause.evidence)
    idle = speed(breakdown={"data_wait": 0.02}, samples=quiet)
    (cause,) = compare(record(before), record(idle), confirms=idle).causes
    assert not any("disk" in line for line in cause.evidence)


def test_time_stalled_on_memory_is_contention() -> None:
    quiet = speed(samples={"memory_pressure": (0.0, 0.0, 0.0)})
    stalled = {"memory_pressure": (0.2, 0.3, 0.3), "own_cpu": (0.9, 0.9, 0.9)}
    slow = speed(breakdown=times(1.3, *COMPUTE), samples=stalled)
    (cause,) = compare(record(quiet), record(slow), confirms=slow).causes
    assert (cause.code, cause.sure) == ("contention", "confirmed")
    assert any("stalled on memory" in line for line in cause.evidence)


def test_a_drop_seen_once_waits_for_its_rerun() -> None:
    judgement = compare(record(speed()), record(speed(**SLOW["loader"])))
    assert judgement.verdict == "inconclusive"
    assert needs_rerun(judgement)
    assert judgement.causes == ()


def test_a_rerun_that_is_fast_again_ends_the_alarm() -> None:
    judgement = compare(record(speed()), record(speed(**SLOW["loader"])), confirms=speed())
    assert judgement.verdict == "pass"
    assert not needs_rerun(judgement)


def test_a_loaded_machine_is_inconclusive_and_names_nothing() -> None:
    loaded = speed(breakdown=times(1.5, *COMPUTE), samples={"foreign_cpu": (1.5, 1.6, 1.5)})
    judgement = compare(record(speed()), record(loaded), confirms=loaded)
    assert judgement.verdict == "inconclusive"
    assert judgement.causes == ()
    assert not needs_rerun(judgement)


def test_less_of_the_machine_is_not_blamed_for_more_work() -> None:
    both = speed(breakdown=times(3.0, *COMPUTE), samples={"own_cpu": (0.6, 0.6, 0.6), "foreign_cpu": (1.0, 1.0, 1.0)})
    judgement = compare(record(speed()), record(both), confirms=both)
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == ["unattributed"]


def loaded(lost: float, **samples: float) -> SpeedEvidence:
    """Return a run that lost this share of throughput under this load."""
    result = speed(1 / (1 - lost) - 1)
    return result.replace(samples=SAMPLES | {name: (value,) * 3 for name, value in samples.items()})


@pytest.mark.parametrize(
    ("lost", "load", "verdict"),
    [
        (0.91, {"cpu_steal": 0.056}, "drift"),
        (0.97, {"cpu_steal": 0.056}, "drift"),
        # 5% are the suite's; 20% stolen leave 0.8 of the throughput, and 5% less than that is 0.76.
        (0.235, {"cpu_steal": 0.2}, "inconclusive"),
        (0.245, {"cpu_steal": 0.2}, "drift"),
        (0.235, {"cgroup_throttled": 0.2}, "inconclusive"),
        (0.245, {"cgroup_throttled": 0.2}, "drift"),
        (0.235, {"memory_pressure": 0.2}, "inconclusive"),
        (0.245, {"memory_pressure": 0.2}, "drift"),
        # One more core asked for by others beside the one of the training (0.1 in the baseline): a half.
        (0.52, {"foreign_cpu": 1.1}, "inconclusive"),
        (0.53, {"foreign_cpu": 1.1}, "drift"),
        (0.52, {"foreign_gpu_processes": 1.0}, "inconclusive"),
        (0.53, {"foreign_gpu_processes": 1.0}, "drift"),
        # Two loads at once: 0.8 of 0.8, less 5%, is 0.608.
        (0.39, {"cpu_steal": 0.2, "memory_pressure": 0.2}, "inconclusive"),
        (0.395, {"cpu_steal": 0.2, "memory_pressure": 0.2}, "drift"),
        (0.9, {"cpu_steal": 1.0}, "inconclusive"),
    ],
)
def test_foreign_load_excuses_its_own_share_and_no_more(lost: float, load: dict[str, float], verdict: str) -> None:
    slow = loaded(lost, **load)
    slow = slow.replace(samples=dict(slow.samples) | {"own_cpu": (1.0,) * 3})
    # More work per step, so that the load alone is never named as the cause.
    before = speed().replace(samples=SAMPLES)
    judgement = compare(record(before), record(slow), confirms=slow)
    assert judgement.verdict == verdict
    assert {cause.code for cause in judgement.causes} <= {"unattributed", "contention"}


def test_a_rerun_on_a_quiet_machine_is_enough_to_excuse() -> None:
    judgement = compare(record(speed()), record(loaded(0.2, cpu_steal=0.3)), confirms=loaded(0.2))
    assert judgement.verdict == "inconclusive"


def stalled(seconds: float) -> SpeedEvidence:
    """Return five steps of 70 ms with stalls of so many seconds."""
    plain, wall = speed(), 5 * speed().step_seconds + seconds
    return plain.replace(steps=5, wall_seconds=wall, samples_per_second=32 * 5 / wall)


def test_stalls_between_steps_are_no_pass() -> None:
    judgement = compare(record(stalled(0.0)), record(stalled(2.0)))
    assert judgement.verdict == "inconclusive"
    assert needs_rerun(judgement)
    assert compare(record(stalled(0.0)), record(stalled(2.0)), confirms=stalled(2.0)).verdict == "drift"


def test_a_baseline_without_wall_time_is_held_against_the_median_step() -> None:
    old = stalled(0.0).replace(wall_seconds=None)
    assert compare(record(old), record(stalled(0.1))).verdict == "pass"
    slower = speed(0.2).replace(wall_seconds=7.0, samples_per_second=1000.0)
    assert needs_rerun(compare(record(old), record(slower)))


def test_two_slow_runs_with_other_signs_are_unattributed() -> None:
    judgement = compare(record(speed()), record(speed(**SLOW["loader"])), confirms=speed(**SLOW["transfer"]))
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == ["unattributed"]


@pytest.mark.parametrize("slower", [-0.3, 0.0, 0.04])
def test_within_the_limit_or_faster_passes(slower: float) -> None:
    assert compare(record(speed()), record(speed(slower))).verdict == "pass"


def test_the_limit_is_the_suites() -> None:
    judged = [compare(record(speed()), record(speed(0.1)), Gates(throughput_drop=drop)) for drop in (0.05, 0.2)]
    assert [item.verdict for item in judged] == ["inconclusive", "pass"]


def test_noise_of_the_steps_is_no_drop() -> None:
    noisy = speed(0.1).replace(step_seconds_quartiles=(0.02, 0.3), steps=10)
    judgement = compare(record(speed()), record(noisy))
    assert judgement.verdict == "inconclusive"
    assert not needs_rerun(judgement)


def test_no_throughput_is_no_pass_and_platforms_are_not_raced() -> None:
    broken = speed().replace(samples_per_second=None)
    assert compare(record(speed()), record(broken)).verdict == "inconclusive"
    assert compare(record(speed()), record(speed(0.5), platform="right")).verdict == "pass"


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
    assert (finding.outcome, finding.detail, finding.observed) == ("inconclusive", why, None)
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
    assert [note["code"] == "hint" for note in output["notes"]] == ([] if demanded else [True])


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


def test_the_command_says_nothing_of_throughput_where_another_part_was_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "load_record", lambda _: record(speed()))
    assert main(["compare", "one", "other"]) == ExitCode.PASS
    assert "throughput" not in capsys.readouterr().out
