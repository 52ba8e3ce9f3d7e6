"""Spec that the faults behind five doors are planted in, and records that name one GPU.

Door 1: two records of one GPU were not compared bit by bit. Door 2: late faults of `speed` on a machine that rounds
otherwise, which still pass. Door 3: native kernels that compute wrongly were `precision`. Door 4: checks that were
lost. Door 5: a record that contradicts itself, on every platform alike.
"""

from __future__ import annotations

from pathlib import Path

from bench.faults.world import EVALUATION_ROWS, World
from plumbline.records import LoadedRecord
from plumbline.schema.fingerprint import Gpu
from plumbline.schema.spec import RunSpec, read_spec, write_spec

_GPU = Gpu(
    name="NVIDIA H100 80GB HBM3", uuid="GPU-1", pci="0", compute_capability="9.0", memory_bytes=85 * 10**9, num_sms=132
)


def spec_of(world: World) -> Path:
    """Write the RunSpec of all parts: a strict probe, and `speed` and `learn` in bf16 on rows of many lengths."""
    plain = read_spec(world.spec("cls", 1))
    every = {"precision": "bf16"}
    spec = RunSpec.model_validate({
        **plain.to_json(), "workload": "doors",
        "data": {**plain.data.to_json(), "sequence_length": 64},
        "probe": {"steps": 6, "portable_steps": 4, "evaluation_rows": EVALUATION_ROWS},
        "speed": {**every, "steps": 16, "checks": True},
        "learn": {
            **every, "steps": 12, "evaluate_every": 6, "checkpoint_every": 12, "evaluation_rows": 28,
            "expect": "chance",
        },
    })  # fmt: skip
    path = world.root / "specs" / "doors.json"
    write_spec(spec, path)
    return path


def on_one_gpu(loaded: LoadedRecord) -> LoadedRecord:
    """Return a record of a CPU as one that names a GPU, with the generator that a GPU has."""
    record = loaded.record
    assert record.evidence.probe is not None
    probe = record.evidence.probe
    generators = {**probe.generators, "cuda:0": tuple((step, "0" * 16) for step in range(probe.num_steps))}
    changed = record.replace(
        fingerprint=record.fingerprint.replace(gpus=(_GPU,)),
        evidence=record.evidence.replace(probe=probe.replace(generators=generators)),
    )
    return LoadedRecord(changed, loaded.folder, loaded.arrays)
