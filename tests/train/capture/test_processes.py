"""Two processes whose weights part are named, beside a healthy record and alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import plumbline
from tests.said import said

pytestmark = pytest.mark.long


def _train(kind: str, folder: Path) -> None:
    program = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "tests.train.capture.processes",
    ]
    subprocess.run([sys.executable, *program, kind, str(folder)], check=True, timeout=100)


def test_a_step_whose_gradients_were_not_exchanged_is_named(tmp_path: Path) -> None:
    """Beside a healthy record where the step is recorded, and alone by weights that part from then on."""
    _train("healthy", tmp_path / "healthy")
    _train("unsynchronised", tmp_path / "faulty")
    healthy, faulty = (plumbline.read_record(tmp_path / folder) for folder in ("healthy", "faulty"))
    beside, alone = plumbline.compare(healthy, faulty, throughput=False), plumbline.judge_alone(faulty)
    assert (beside.verdict, alone.verdict) == ("drift", "drift")
    assert any("process 1" in said(cause.why) for cause in alone.causes)
    assert plumbline.judge_alone(healthy).verdict == "pass"
