"""Untrusted manifests: forbidden values are refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.schema.base import read_model
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.manifest import Manifest, safe_key

DIGEST = "ab" * 32


def manifest(**changes):
    shard = {"key": "train/0.parquet", "size": 10, "sha256": DIGEST, "num_rows": 2, "rows_sha256": DIGEST}
    content = {
        "name": "reviews",
        "task": "sequence-classification",
        "num_labels": 2,
        "tokenizer": {"key": "tokenizer.json", "size": 3, "sha256": DIGEST},
        "vocab_size": 100,
        "train": [shard],
        "evaluation": [{**shard, "key": "evaluation/0.parquet"}],
    }
    return json.dumps({**content, **changes}).encode()


def test_an_honest_manifest_is_read_and_its_digest_depends_on_every_byte_count():
    item = read_model(Manifest, manifest())
    other = read_model(Manifest, manifest(vocab_size=101))
    assert item.digest == read_model(Manifest, manifest()).digest
    assert item.digest != other.digest


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"surprise": 1}, "surprise"),
        ({"schema_version": 2}, "schema_version"),
        ({"train": []}, "train"),
        ({"vocab_size": float("nan")}, "vocab_size"),
        ({"tokenizer": {"key": "../tokenizer.json", "size": 3, "sha256": DIGEST}}, "tokenizer.key"),
        ({"tokenizer": {"key": "/etc/passwd", "size": 3, "sha256": DIGEST}}, "tokenizer.key"),
        ({"tokenizer": {"key": "t.json", "size": 1 << 60, "sha256": DIGEST}}, "tokenizer.size"),
        ({"tokenizer": {"key": "t.json", "size": -1, "sha256": DIGEST}}, "tokenizer.size"),
        ({"tokenizer": {"key": "t.json", "size": 3, "sha256": "xyz"}}, "tokenizer.sha256"),
    ],
)
def test_a_lie_is_refused_and_its_key_named(changes, key):
    with pytest.raises(InvalidInputError) as refused:
        read_model(Manifest, manifest(**changes), where="manifest.json")
    assert refused.value.key == key
    assert "manifest.json" in str(refused.value)


def test_a_key_that_stands_twice_is_refused_even_in_other_case():
    tokenizer = {"key": "TRAIN/0.parquet", "size": 3, "sha256": DIGEST}
    with pytest.raises(InvalidInputError, match="appears twice"):
        read_model(Manifest, manifest(tokenizer=tokenizer))


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_accepted_key_leaves_its_folder(tmp_path_factory, text):
    try:
        key = safe_key(text)
    except ValueError:
        return
    root = (tmp_path_factory.getbasetemp() / "root").resolve()
    inside = (root / key).resolve()
    assert root in inside.parents
