"""Records of one H100 beside those of its own CPU: `make gpu` made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu.place import names_a_path
from plumbline.judge import compare
from plumbline.records import load_record

RECORDS = Path(__file__).resolve().parent / "h100"


@pytest.mark.parametrize(("reference", "candidate"), [("cpu", "cuda"), ("cuda", "cpu"), ("parts-cpu", "parts-cuda")])
def test_a_gpu_trains_what_its_cpu_trains(reference: str, candidate: str) -> None:
    """The probe in fp32; with `parts` also `speed` in bf16 and a learning curve."""
    judgement = compare(load_record(RECORDS / reference), load_record(RECORDS / candidate), throughput=False)
    # These records are older than the accuracy of chance, without which no curve passes.
    failed = [finding.check for finding in judgement.findings if finding.outcome != "pass"]
    assert failed == (["learn.learned"] if reference.startswith("parts") else [])
    assert any(note.to_json().get("code") == "portable" for note in judgement.notes)


def test_tf32_switched_on_from_outside_is_drift_and_named() -> None:
    judgement = compare(load_record(RECORDS / "cpu"), load_record(RECORDS / "tf32"), throughput=False)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["precision"])


@pytest.mark.parametrize("folder", sorted(RECORDS.iterdir()), ids=lambda folder: folder.name)
def test_a_kept_record_names_no_path_of_its_machine(folder: Path) -> None:
    environment = load_record(folder).record.fingerprint.environment
    assert [name for name, value in environment.items() if names_a_path(value)] == []
