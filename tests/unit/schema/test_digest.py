"""Digests in a defined byte order, comparable across platforms."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from plumbline.digest import canonical_json, digest_array, digest_bytes, digest_file, digest_json


def test_byte_order_and_memory_layout_do_not_matter_but_dtype_shape_and_values_do():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert digest_array(array) == digest_array(array.astype(">i4"))
    assert digest_array(array) == digest_array(np.asfortranarray(array))
    others = [array.astype(np.int64), array.reshape(3, 2), array + 1, np.zeros((0, 3), np.int32)]
    assert len({digest_array(other) for other in [array, *others]}) == 5


def test_the_digest_of_an_array_is_the_one_that_is_written_down():
    expected = hashlib.sha256(b"int16|2|" + b"\x01\x00\x02\x00").hexdigest()
    assert digest_array(np.array([1, 2], dtype=np.int16)) == expected


def test_signed_zeros_differ_and_scalars_have_a_digest():
    assert digest_array(np.array(0.0)) != digest_array(np.array(-0.0))


def test_json_is_canonical_and_refuses_what_is_no_number():
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"loss": float("nan")})


def test_a_file_hashes_to_its_bytes(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)
    assert digest_file(path) == digest_bytes(b"x" * 3_000_000)
