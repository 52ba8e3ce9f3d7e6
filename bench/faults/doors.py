"""Faults that once passed or were named wrongly, each behind one of five doors, and the spec that they are planted in.

Door 1: two records of one GPU were not compared bit by bit. Door 2: late faults of `speed` on a machine that rounds
otherwise, which still pass. Door 3: native kernels that compute wrongly were `precision`. Door 4: a replay that was
lost. Door 5: a record that contradicts itself, on every platform alike.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.faults.catalogue import Entry
from bench.faults.world import EVALUATION_ROWS, World
from plumbline.records import LoadedRecord
from plumbline.schema.fingerprint import Gpu
from plumbline.schema.spec import RunSpec, read_spec, write_spec

__all__ = ["BEHIND", "KERNELS", "LATE", "LONG", "LOST", "ROWS", "STATED", "on_one_gpu", "spec_of"]

_GPU = Gpu(
    name="NVIDIA H100 80GB HBM3", uuid="GPU-1", pci="0", compute_capability="9.0", memory_bytes=85 * 10**9, num_sms=132
)


def _entries(door: str, faults: dict[str, str]) -> tuple[Entry, ...]:
    return tuple(
        Entry(name.replace("_", "-"), f"door {door}", cause, inject=f"doors.{name}", workload="doors")
        for name, cause in faults.items()
    )


LATE = _entries("1 and 2", {
    "gradients_kept_every_second_step": "gradient", "first_rate_kept": "optimizer", "attention_keeps_all": "rng",
    "stale_autocast_weights": "operator", "updates_too_long": "optimizer",
})  # fmt: skip
"""Faults of `speed` behind its first steps: bits show them on an equal machine, and nothing behind a different one."""
BEHIND = tuple(
    replace(entry, name=f"{entry.name}-behind-avx2", environment={"ATEN_CPU_CAPABILITY": "avx2"}) for entry in LATE
)
"""The same on a machine that rounds differently: they pass, until each machine proves its own steps."""
KERNELS = _entries("3", {
    "linear_drops_terms": "operator", "layer_norm_skips_its_tail": "operator", "gelu_with_a_wrong_branch": "operator",
    "softmax_skips_its_tail": "operator", "tanh_is_clipped": "operator", "embedding_reads_the_row_before": "operator",
    "entropy_counts_a_row_less": "loss", "native_updates_too_long": "optimizer", "linear_loses_gradients": "gradient",
    "one_layer_norm_with_other_eps": "operator",
})  # fmt: skip
"""Native kernels that compute wrongly beside equal portable legs, and a formula that shows behind its own module."""
LOST = (
    Entry(
        "replay-out-of-memory-beside-a-relu", "door 4", "operator",
        inject="doors.replay_out_of_memory,doors.speed_with_relu", workload="doors",
    ),
)  # fmt: skip
"""Without its replay, `speed` is judged by its trail alone, which shows nothing behind different rounding."""
STATED = _entries("5", {
    "evaluated_with_dropout": "evaluation", "probe_evaluated_with_dropout": "evaluation", "speed_drops_more": "rng",
    "learn_drops_more": "rng", "third_update_lost": "optimizer", "late_updates_lost": "optimizer",
    "probe_update_lost": "optimizer",
})  # fmt: skip
"""Faults whose own record contradicts its spec or itself: platforms that share them need no reference."""
LONG = _entries("5", {"long_rows_lose_tokens": "operator"})
"""A formula that is wrong for rows beyond a length."""
ROWS = (*LATE, *BEHIND, *KERNELS, *LOST, *STATED, *LONG)


def spec_of(world: World) -> Path:
    """Write the RunSpec of all parts: a strict probe, and `speed` and `learn` in bf16 on rows of many lengths."""
    plain = read_spec(world.spec("cls", 1))
    every = {"precision": "bf16"}
    spec = RunSpec.model_validate({
        **plain.to_json(), "workload": "doors",
        "data": {**plain.data.to_json(), "sequence_length": 64},
        "probe": {"steps": 6, "portable_steps": 4, "evaluation_rows": EVALUATION_ROWS},
        "speed": {**every, "steps": 16, "production_steps": 2},
        "learn": {**every, "steps": 12, "evaluate_every": 6, "checkpoint_every": 12, "evaluation_rows": 28},
    })  # fmt: skip
    path = world.root / "specs" / "doors.json"
    write_spec(spec, path)
    return path


def on_one_gpu(loaded: LoadedRecord) -> LoadedRecord:
    """Return a record of a CPU as one that names a GPU, with the generator that a GPU has."""
    record = loaded.record
    assert record.evidence.probe is not None
    probe = record.evidence.probe
    steps = tuple(step.replace(rng={**step.rng, "cuda:0": "0" * 64}) for step in probe.steps)
    changed = record.replace(
        fingerprint=record.fingerprint.replace(gpus=(_GPU,)),
        evidence=record.evidence.replace(probe=probe.replace(steps=steps)),
    )
    return LoadedRecord(changed, loaded.folder, loaded.arrays)
