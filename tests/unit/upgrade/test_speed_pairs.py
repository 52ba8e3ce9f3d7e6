"""Pairs of trainings are looked at as soon as they may decide, and alternate across the looks."""

from __future__ import annotations

import itertools
import math
import os
from types import SimpleNamespace

import pytest

from plumbline.environments.launch import MICROBENCHMARKS
from plumbline.environments.virtual_environments import Environment
from plumbline.schema.suite import Gates
from plumbline.upgrade.answer import Trial
from plumbline.upgrade.gate import Parts, UpgradeGate
from plumbline.upgrade.machine import LocalTrials
from plumbline.upgrade.runs import Runs
from tests.unit.report.samples import spec as sample_spec
from tests.unit.upgrade.conftest import Machine, changes


@pytest.mark.parametrize(
    ("spread", "asked", "verdict"),
    [
        (0.005, [(0, 3)], "pass"),
        (0.015, [(0, 3), (3, 1)], "pass"),
        (0.03, [(0, 3), (3, 1), (4, 2)], "pass"),
        (0.5, [(0, 3), (3, 1), (4, 2), (6, 3), (9, 3)], "inconclusive"),
    ],
)
def test_few_pairs_are_added_while_few_may_decide(spread, asked, verdict):
    noise = itertools.cycle([spread, -spread])
    machine = Machine(ratios=lambda _, count: [next(noise) for _ in range(count)])
    answer = UpgradeGate(machine, Gates(), Parts(probe=False, learn=False, inputs=False)).judge(changes(2))
    assert [(one.pairs_before, one.pairs) for one in machine.asked if one.part == "speed"] == asked
    assert answer.verdict == verdict


def test_the_order_alternates_across_trials(tmp_path, monkeypatch):
    own, changed = (Environment(tmp_path / name, name * 64) for name in "ab")
    trials = LocalTrials(
        None,
        "x",
        tmp_path,
        SimpleNamespace(build=lambda _: changed, packages=lambda _: {}),
        SimpleNamespace(add=lambda _: ()),
    )
    trials._current, trials._inputs, trials._candidate = own, (None, sample_spec(), tmp_path), changed
    order = []

    def train(_, environment, **__):
        order.append("own" if environment is own else "changed")
        peak = 1000 if environment is own else 1100
        speed = SimpleNamespace(samples_per_second=100.0, peak_memory_bytes=5, peak_host_memory_bytes=peak)
        fingerprint = SimpleNamespace(gpus=())
        record = SimpleNamespace(record=SimpleNamespace(evidence=SimpleNamespace(speed=speed), fingerprint=fingerprint))
        return SimpleNamespace(record=record, failure=None, is_lost=False, places=frozenset())

    monkeypatch.setattr(trials, "_train", train)
    for before, pairs in ((0, 3), (3, 1), (4, 2)):
        result = trials.run(Trial(name="x", part="speed", pairs=pairs, pairs_before=before))
        assert result.outcome == "same", result.failures
        # A CPU has one memory; on a GPU its own is a second one.
        assert result.memory_ratios == {"host memory": (pytest.approx(math.log(1.1)),) * pairs}
    firsts = order[::2]
    assert firsts == ["own", "changed"] * 3


def test_a_training_for_the_speed_alone_measures_no_machine(tmp_path):
    """The rates of the machine explain a lost throughput of a platform; a pair cancels them."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "{MICROBENCHMARKS}=${MICROBENCHMARKS}" >&2\nexit 4\n', encoding="utf-8")
    python.chmod(0o755)
    environment = Environment(tmp_path / "environment", "a" * 64)
    assert MICROBENCHMARKS not in os.environ
    run = Runs(tmp_path / "work").train(sample_spec(), environment, tmp_path, limit=60.0)
    assert f"{MICROBENCHMARKS}=off" in run.failure.message
