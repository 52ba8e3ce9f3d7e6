"""Training over several processes of one machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from plumbline.launch import run_training, trainer_environment
from plumbline.schema.expected import Expected
from plumbline.schema.record import read_record
from plumbline.schema.spec import write_spec
from tests.train.conftest import Workshop

LEARN = {"steps": 3, "evaluate_every": 3, "checkpoint_every": 3, "evaluation_rows": 8}


def reduces(workshop: Workshop, out: Path, accumulation: int) -> int:
    """Return the number of gradient reductions of two processes in three steps."""
    spec = workshop.spec(probe=None, learn=LEARN, optimizer={"accumulation_steps": accumulation})
    python, _, _, *rest = workshop.command(spec, out)
    child = str(Path(__file__).with_name("counted_child.py"))
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, child, str(out.with_suffix(".count")), *rest]
    done = subprocess.run(
        command, env=trainer_environment({"OMP_NUM_THREADS": "1"}), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    counts = [int(out.with_suffix(f".count.{rank}").read_text()) for rank in (0, 1)]
    assert counts[0] == counts[1]
    return counts[0]


@pytest.mark.timeout(240)
def test_four_micro_batches_are_reduced_once(workshop: Workshop, tmp_path: Path) -> None:
    whole = reduces(workshop, tmp_path / "whole", 1)
    assert whole >= 3
    assert reduces(workshop, tmp_path / "four", 4) == whole


@pytest.mark.timeout(120)
def test_as_many_processes_as_the_suite_says_train(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(probe={"steps": 1, "envelope_seeds": 0})
    write_spec(spec, tmp_path / "spec.json")
    expected = Expected(accelerator="cpu", gpus=2)
    code = run_training(
        tmp_path / "spec.json", tmp_path / "out", data=workshop.url, cache=workshop.folder / "cache", platform="here",
        record_id="r", expected=expected, num_processes=expected.gpus, environment={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    record = read_record(tmp_path / "out")
    assert (code, record.exit.status, record.fingerprint.num_processes) == (0, "completed", 2)
