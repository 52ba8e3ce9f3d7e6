"""A small record, as a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plumbline.night.dispatch import TrainingOrder
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.spec import RunSpec
from tests.record_parts import record_parts

SPEC = RunSpec.model_validate({
    "workload": "bert-tiny", "task": "masked-lm", "seed": 7, "batch_size": 8, "probe": {"steps": 2},
    "model": {
        "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512,
        "max_position_embeddings": 512, "vocab_size": 2048, "weights_key": "weights/x", "weights_sha256": "b" * 64,
    },
    "data": {"name": "reviews", "manifest_sha256": "c" * 64, "sequence_length": 64},
})  # fmt: skip


def make_record(
    folder: Path,
    record_id: str,
    platform: str,
    *,
    content: bytes = b"sixteen bytes ok",
    extra: dict[str, bytes] | None = None,
) -> Path:
    """Write a record with `rows.parquet`, further parts, and its marker."""
    folder.mkdir(parents=True)
    for name, data in {"rows.parquet": content, **(extra or {})}.items():
        (folder / name).write_bytes(data)
    spec = SPEC
    record = RunRecord.model_validate({
        "record_id": record_id, "platform": platform, "spec": spec, "spec_sha256": spec.digest,
        "started_at": "2026-11-20T02:00:00Z", "finished_at": "2026-11-20T02:01:00Z",
        "fingerprint": {
            "hostname": "h", "os": "Linux", "python": "3.11", "plumbline": "0.1.0",
            "cpu": {"model": "x", "isa": "AVX2", "num_cores": 2, "num_threads": 2},
        },
        "evidence": {}, "exit": {"status": "completed"}, "parts": record_parts(folder),
    })  # fmt: skip
    (folder / RECORD_NAME).write_text(record.model_dump_json())
    return folder


def orders_of(expected: Mapping[str, str]) -> dict[str, TrainingOrder]:
    """Return the orders that records of these ids answer, by platform; the records are of no round."""
    orders = {}
    for platform, record_id in expected.items():
        order = TrainingOrder(
            platform=platform, data="file:///d", outbox="file:///o", record_id=record_id, round_id="none", spec=SPEC,
            run_seconds=60,
        )  # fmt: skip
        orders[platform] = order.model_copy(update={"round_id": ""})
    return orders
