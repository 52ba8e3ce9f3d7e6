"""Digests in a defined byte order, comparable across platforms."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from plumbline.schema.digest import bounded_name, canonical_json, digest_array, digest_bytes, digest_file, digest_json


def test_byte_order_and_memory_layout_do_not_matter_but_dtype_shape_and_values_do():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert digest_array(array) == digest_array(array.astype(">i4"))
    assert digest_array(array) == digest_array(np.asfortranarray(array))
    others = [array.astype(np.int64), array.reshape(3, 2), array + 1, np.zeros((0, 3), np.int32)]
    assert len({digest_array(other) for other in [array, *others]}) == 5


def test_signed_zeros_differ_and_scalars_have_a_digest():
    assert digest_array(np.array(0.0)) != digest_array(np.array(-0.0))


def test_json_is_canonical_and_refuses_what_is_no_number():
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"loss": float("nan")})


CUBE = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
ARRAYS = {
    "a single number": (np.array(2.5), b"float64||" + struct.pack("<d", 2.5)),
    "a big-endian number": (np.array(2.5, ">f8"), b"float64||" + struct.pack("<d", 2.5)),
    "no number": (np.zeros(0, np.uint16), b"uint16|0|"),
    "no row": (np.zeros((0, 3)), b"float64|0,3|"),
    "no column": (np.zeros((3, 0), np.int8), b"int8|3,0|"),
    "bits": (np.array([True, False, True]), b"bool|3|\x01\x00\x01"),
    "half precision": (np.array([0.5, -1.5], np.float16), b"float16|2|" + struct.pack("<2e", 0.5, -1.5)),
    "bytes": (np.arange(5, dtype=np.uint8), b"uint8|5|\x00\x01\x02\x03\x04"),
    "a table": (CUBE[0], b"int32|3,4|" + struct.pack("<12i", *range(12))),
    "a cube": (CUBE, b"int32|2,3,4|" + struct.pack("<24i", *range(24))),
    "a big-endian cube": (CUBE.astype(">i4"), b"int32|2,3,4|" + struct.pack("<24i", *range(24))),
    "every second column": (CUBE[:, :, ::2], b"int32|2,3,2|" + struct.pack("<12i", *range(0, 24, 2))),
    "backwards": (CUBE[0, 0, ::-1], b"int32|4|" + struct.pack("<4i", 3, 2, 1, 0)),
    "turned": (CUBE[0].T, b"int32|4,3|" + struct.pack("<12i", 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_hashes_to_its_type_shape_and_little_endian_values(name):
    array, content = ARRAYS[name]
    assert digest_array(array) == hashlib.sha256(content).hexdigest()


def test_digests_of_today_are_those_of_records_made_before():
    assert digest_array(CUBE) == "95421bd0e6743a889498a1c528f229566ab4fdddbca6c7b59a16e7a02bcff65b"
    assert digest_array(np.array(2.5)) == "87e3d13a61afa18ddded4bc98b09258b2d9607ece4625cd028f29b249545cb93"
    assert digest_json({"b": [1, 2.5, None], "a": "é"}) == (
        "d764fee2563da33e3d57334755404e635da33c995824b0adfabc4b6e1af4f608"
    )
    assert digest_bytes(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_name_that_is_too_long_keeps_its_start_and_a_digest():
    assert bounded_name("x" * 63) == "x" * 63
    assert bounded_name("abc" * 30) == "abc" * 16 + "ab-dc92693dc48f"
    assert [len(bounded_name("x" * size)) for size in (0, 62, 64, 500)] == [0, 62, 63, 63]


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1])
def test_a_file_of_any_size_hashes_to_its_bytes(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(b"y" * size)
    assert digest_file(path) == hashlib.sha256(b"y" * size).hexdigest()
