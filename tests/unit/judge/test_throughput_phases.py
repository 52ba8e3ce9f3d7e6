"""Causes by the phase that lost the time: the loader, the transfer, the computation, and the disk."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge.gates.throughput_causes import speed_cause
from plumbline.schema.evidence import SpeedEvidence
from tests.said import said

from .made_speed import run

# The phase that lost the time.


def phases(rate: float = 100.0, **seconds: float) -> SpeedEvidence:
    return run(rate, breakdown=seconds)


BEFORE = {"data_wait": 0.01, "host_to_device": 0.02, "forward": 0.2, "backward": 0.4, "communication": 0.03}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"data_wait": 0.11}, "loader"),
        ({"host_to_device": 0.13}, "transfer"),
        ({"forward": 0.3}, "software"),
        ({"backward": 0.5}, "software"),
        ({"optimizer": 0.1}, "software"),
        ({"communication": 0.2}, None),
        # 60% of the lost time name a phase; what other phases gained does not count.
        ({"data_wait": 0.01 + 0.601, "forward": 0.2 + 0.399}, "loader"),
        ({"data_wait": 0.01 + 0.599, "forward": 0.2 + 0.401}, None),
        ({"data_wait": 0.01 + 0.401, "host_to_device": 0.02 + 0.599}, None),
        ({"data_wait": 0.01 + 0.399, "host_to_device": 0.02 + 0.601}, "transfer"),
        ({"data_wait": 0.05, "forward": 0.01}, "loader"),
        ({"forward": 0.4, "backward": 0.2, "data_wait": 0.02}, "loader"),
        ({"data_wait": 0.0, "host_to_device": 0.0, "forward": 0.0}, None),
        ({}, None),
    ],
)
def test_the_phase_with_most_of_the_lost_time_is_named(changed: dict[str, float], code: str | None) -> None:
    found = speed_cause(phases(80.0, **BEFORE), phases(60.0, **(BEFORE | changed)), 1)
    assert found[0] == code
    assert found[1]


def test_a_phase_that_only_the_later_run_has_is_counted_whole_and_one_that_it_lacks_is_not() -> None:
    assert speed_cause(phases(80.0), phases(60.0, data_wait=0.01, host_to_device=0.004), 1)[0] == "loader"
    assert speed_cause(phases(80.0, data_wait=0.5), phases(60.0, host_to_device=0.004), 1)[0] == "transfer"
    assert speed_cause(phases(80.0, forward=0.5), phases(60.0), 1)[0] is None
    lines = speed_cause(phases(80.0), phases(60.0, forward=0.0125, backward=0.0, optimizer=0.5), 1)[2]
    assert said(lines) == ("forward 12.5 ms a step instead of 0", "optimizer 500 ms a step instead of 0")
    lines = speed_cause(phases(80.0, backward=0.1), phases(60.0, forward=0.75, backward=0.0), 1)[2]
    assert said(lines) == ("forward 750 ms a step instead of 0", "backward 0 ms a step instead of 100")


# A wait for data, and the disk.


def waiting(seconds: float, **changes: Any) -> SpeedEvidence:
    samples, rates = changes.get("samples", {}), changes.get("rates", {})
    return run(10 / seconds, breakdown={"data_wait": seconds}, samples=samples).replace(microbenchmarks=rates)


DISK, RATE = "disk_busy", "disk_read_bytes_per_second"


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({}, {}, []),
        ({DISK: 0.25}, {DISK: 0.51}, ["busy time of the busiest disk: 51% instead of 25%"]),
        ({DISK: 0.25}, {DISK: 0.49}, []),
        ({DISK: 0.51}, {DISK: 0.25}, []),
        ({}, {DISK: 0.9}, []),
        ({DISK: 0.9}, {}, []),
        ({"io_pressure": 0.1}, {"io_pressure": 0.5}, ["time in which a task waited for a disk: 50% instead of 10%"]),
        ({"io_pressure": 0.1, RATE: 3e6}, {"io_pressure": 0.5, RATE: 5e6}, [
            "time in which a task waited for a disk: 50% instead of 10%",
        ]),
        ({DISK: 0.0, RATE: 3e6}, {DISK: 0.5, RATE: 5.5e6}, [
            "busy time of the busiest disk: 50% instead of 0%", "read from disks: 5.5 MB/s instead of 3",
        ]),
        ({DISK: 0.0, RATE: 3e6}, {DISK: 0.5}, ["busy time of the busiest disk: 50% instead of 0%"]),
        ({DISK: 0.0, RATE: 0.0}, {DISK: 0.5, RATE: 2e6}, [
            "busy time of the busiest disk: 50% instead of 0%", "read from disks: 2 MB/s instead of 0",
        ]),
    ],
)  # fmt: skip
def test_a_busy_disk_is_a_sign_of_a_wait(before: dict[str, Any], after: dict[str, Any], lines: list[str]) -> None:
    code, _, found = speed_cause(waiting(1.0, samples=before), waiting(2.0, samples=after), 1)
    assert code == "loader"
    assert list(said(found[1:])) == lines


@pytest.mark.parametrize(
    ("first", "after", "is_slow"),
    [
        (0.74, 0.6, True),
        (0.6, 0.74, True),
        (0.76, 0.1, False),
        (0.1, 0.76, False),
        (None, 0.1, False),
        (0.1, None, False),
    ],
)
def test_a_disk_is_slow_where_both_of_its_measurements_lost_a_quarter(
    first: float | None, after: float | None, is_slow: bool
) -> None:
    both = {RATE: 1e9, f"{RATE}_after": 5e8}
    now = {RATE: first and 1e9 * first, f"{RATE}_after": after and 5e8 * after}
    rates = {key: value for key, value in now.items() if value is not None}
    _, _, found = speed_cause(waiting(1.0, rates=both), waiting(2.0, rates=rates), 1)
    shares = f"{1 - (first or 0):.0%} and {1 - (after or 0):.0%}"
    line = f"reading a fresh file from the disk lost {shares} before and after the part"
    assert list(said(found[1:])) == ([line] if is_slow else [])
