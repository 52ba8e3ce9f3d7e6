"""The examples run as a user would run them, from their own folder, and pass beside themselves and alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import plumbline

FOLDER = Path(__file__).parents[3] / "examples" / "capture"
PLAIN = ("decoder", "resnet", "lora")


def _run(name: str, record: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name == "processes" else []
    subprocess.run([sys.executable, *launcher, f"{name}.py", str(record)], cwd=FOLDER, check=True, timeout=120)


@pytest.mark.long
@pytest.mark.parametrize("name", [*PLAIN, "processes", pytest.param("trainer", marks=pytest.mark.accelerate)])
def test_an_example_records_a_training_that_passes(name: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        _run(name, tmp_path / folder)
    first, second = (plumbline.read_record(tmp_path / folder) for folder in ("a", "b"))
    assert plumbline.compare(first, second, throughput=False).verdict == "pass"
    assert plumbline.judge_alone(first).verdict == "pass"
    captured = first.record.evidence.captured
    assert not [why for why in captured.unknown if "Error" in why]
    if name == "processes":
        assert first.record.fingerprint.num_processes == 2
        assert set(first.record.evidence.probe.num_rows) == {12}  # type: ignore[union-attr]
        assert {each.deviation is not None and each.deviation < 1e-4 for each in captured.exchanges} == {True}


def test_a_loop_needs_three_lines_more_and_a_trainer_one() -> None:
    marked = (FOLDER / "decoder.py").read_text(encoding="utf-8")
    lines = re.findall(r"^.*\b(?:plumbline|capture|run)\b.*$", marked, re.MULTILINE)
    assert [line.endswith("  # Plumbline") for line in lines] == [True] * 3
    own = [
        line
        for line in (FOLDER / "trainer.py").read_text(encoding="utf-8").splitlines()
        if "hugging_face_callback" in line
    ]
    assert len(own) == 2  # its import, and its callback
    for name in (*PLAIN, "processes", "trainer"):
        assert len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 60
