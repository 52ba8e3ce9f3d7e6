"""A recorder breaks no loop of two processes, and takes parts of a model for no replicas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import plumbline
from tests.said import said

from .process_shapes import SHAPES

_PARTS = ("parallel", "stages", "halves", "independent")
"""Loops whose processes hold parameters of their own."""


def _digests(name: str, *folder: str) -> str:
    """Train by two processes; return the digests of both states."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = [*launcher, "-m", "tests.train.capture.process_shapes", name, *folder]
    return subprocess.run(program, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_two_processes_train_the_same_bits_and_their_record_passes(name: str, tmp_path: Path) -> None:
    plain = _digests(name)
    assert [_digests(name, str(tmp_path / folder)) for folder in ("a", "b")] == [plain, plain]
    first, second = (plumbline.read_record(tmp_path / folder) for folder in ("a", "b"))
    assert plumbline.compare(first, second, throughput=False).verdict == "pass"
    assert plumbline.judge_alone(first).verdict == (
        "inconclusive" if name == "sharded" else "pass"
    )  # nothing is proven
    captured = first.record.evidence.captured
    alone = "calls other processes in its forward pass"  # and so is not repeated in one of them
    assert not [why for why in captured.unknown if "Error" in why and alone not in why]
    assert ("exchange and other processes" in "".join(captured.unknown)) == (name in _PARTS)


@pytest.mark.long
def test_a_gradient_that_one_process_of_a_parallel_layer_leaves_unclipped_is_named(tmp_path: Path) -> None:
    """It is equal in both processes, though their layers are not."""
    _digests("unclipped", str(tmp_path))
    judgement = plumbline.judge_alone(plumbline.read_record(tmp_path))
    assert judgement.verdict == "drift"
    assert "process 1 sees a different gradient of norm.weight" in said(judgement.causes[0].why)


@pytest.mark.long
def test_a_step_whose_gradients_were_not_exchanged_is_named(tmp_path: Path) -> None:
    """Beside a healthy record where the step is recorded, and alone by weights that part from then on."""
    for name in ("gathered", "unsynchronised"):
        _digests(name, str(tmp_path / name))
    healthy, faulty = (plumbline.read_record(tmp_path / name) for name in ("gathered", "unsynchronised"))
    alone = plumbline.judge_alone(faulty)
    assert (plumbline.compare(healthy, faulty, throughput=False).verdict, alone.verdict) == ("drift", "drift")
    assert any("process 1" in said(cause.why) for cause in alone.causes)
