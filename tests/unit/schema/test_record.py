"""Partial, altered or mismatched records are refused."""

from __future__ import annotations

import json

import pytest

from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import CorruptDataError, InvalidInputError
from plumbline.schema.record import RECORD_NAME, RunRecord, read_record
from plumbline.schema.spec import RunSpec, read_spec, write_spec
from tests.record_parts import record_parts

DIGEST = "cd" * 32


@pytest.fixture
def spec():
    return RunSpec.model_validate(
        {
            "workload": "reviews",
            "task": "sequence-classification",
            "model": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "max_position_embeddings": 16,
                "vocab_size": 64,
                "num_labels": 2,
                "weights_key": f"weights/{DIGEST}.safetensors",
                "weights_sha256": DIGEST,
            },
            "data": {"name": "reviews", "manifest_sha256": DIGEST, "sequence_length": 16},
            "seed": 1,
            "batch_size": 4,
            "probe": {"steps": 2},
        }
    )


@pytest.fixture
def folder(tmp_path, spec):
    (tmp_path / "sketches.safetensors").write_bytes(b"sketches")
    record = RunRecord.model_validate(
        {
            "record_id": "r1",
            "platform": "aws",
            "spec_sha256": spec.digest,
            "spec": spec,
            "started_at": "2026-01-01T00:00:00Z",
            "finished_at": "2026-01-01T00:01:00Z",
            "fingerprint": {
                "hostname": "h",
                "os": "linux",
                "python": "3.11",
                "plumbline": "0",
                "cpu": {"model": "x", "isa": "AVX2", "num_cores": 2, "num_threads": 1},
            },
            "evidence": {},
            "exit": {"status": "completed"},
            "parts": record_parts(tmp_path),
        }
    )
    (tmp_path / RECORD_NAME).write_bytes(canonical_json(record.to_json()))
    return tmp_path


def change(folder, **changes):
    path = folder / RECORD_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_record_is_read(folder, spec):
    assert read_record(folder).spec == spec


def test_a_folder_without_its_marker_is_partial(folder):
    (folder / RECORD_NAME).unlink()
    with pytest.raises(InvalidInputError, match="partial"):
        read_record(folder)


@pytest.mark.parametrize("damage", ["alter", "truncate", "remove", "link"])
def test_a_part_of_other_bytes_is_corrupt(folder, damage):
    part = folder / "sketches.safetensors"
    content = {"alter": b"sketchez", "truncate": b"sketch", "remove": None, "link": None}[damage]
    part.unlink()
    if content is not None:
        part.write_bytes(content)
    if damage == "link":
        (folder / "elsewhere").write_bytes(b"sketches")
        part.symlink_to(folder / "elsewhere")
    with pytest.raises(CorruptDataError, match=r"sketches\.safetensors"):
        read_record(folder)


def test_a_record_of_another_spec_is_refused(folder):
    change(folder, spec_sha256=DIGEST)
    with pytest.raises(InvalidInputError, match="spec_sha256"):
        read_record(folder)


def test_a_record_of_a_different_schema_version_is_refused_in_one_line(folder):
    change(folder, schema_version=2)
    with pytest.raises(InvalidInputError, match="schema_version") as refused:
        read_record(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_a_record_with_a_number_that_is_none_is_refused(folder, value):
    path = folder / RECORD_NAME
    path.write_text(path.read_text().replace('"timings":{}', f'"timings":{{"probe":{value}}}'))
    with pytest.raises(InvalidInputError):
        read_record(folder)


def test_a_part_may_not_lie_outside_the_record(folder):
    change(folder, parts=[{"key": "../../secret", "size": 1, "sha256": DIGEST}])
    with pytest.raises(InvalidInputError, match="not a plain relative path"):
        read_record(folder)


def test_a_spec_whose_digest_is_not_its_own_is_refused(tmp_path, spec):
    path = tmp_path / "spec.json"
    write_spec(spec, path)
    assert read_spec(path) == spec
    path.write_text(path.read_text().replace('"seed":1', '"seed":2'))
    with pytest.raises(InvalidInputError, match="plumbline spec"):
        read_spec(path)
