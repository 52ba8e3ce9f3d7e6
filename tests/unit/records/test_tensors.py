"""Malformed arrays of untrusted records are refused, with the file's name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from plumbline.records.tensors import check_tensors, read_tensors
from plumbline.schema.errors import CorruptDataError


def _file(path: Path, header: object, body: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def refusals(path: Path) -> list[str]:
    """Return what each of the two readers says against a file, without its name; nothing if it is read."""
    said = []
    for read in (read_tensors, check_tensors):
        try:
            read(path)
        except CorruptDataError as error:
            said.append(str(error).removeprefix(f"{path}: "))
    return said


def _text(path: Path, text: bytes, length: int | None = None) -> Path:
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text)
    return path


def test_what_the_library_writes_is_read_back(tmp_path: Path) -> None:
    tensors = {
        "a/b": np.arange(6, dtype=np.float64).reshape(2, 3),
        "c": np.array([], dtype=np.int32),
        "d": np.array(3, dtype=np.uint8),
        "e": np.array([True, False]),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    result = read_tensors(tmp_path / "x.safetensors")
    assert result.keys() == tensors.keys()
    for name, array in tensors.items():
        assert result[name].dtype == array.dtype
        assert np.array_equal(result[name], array)


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625], dtype=np.float32)
    body = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    path = _file(tmp_path / "x", {"t": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}, body)
    assert read_tensors(path)["t"].tolist() == values.tolist()


@pytest.mark.parametrize("header", ['{"t": %s, "t": %s}', '{"t": {"dtype": "U8", "shape": [4], "shape": [1], %s}}'])
def test_a_name_that_is_given_twice_is_refused(tmp_path: Path, header: str) -> None:
    entry = '{"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
    text = (header % ((entry,) * 2 if header.count("%s") == 2 else '"data_offsets": [0, 1]')).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    assert len(refusals(tmp_path / "x")) == 2


def test_the_header_alone_shows_a_cut_file(tmp_path: Path) -> None:
    save_file({"t": np.zeros(1000)}, tmp_path / "x")
    check_tensors(tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(CorruptDataError, match="not a safetensors file"):
        check_tensors(tmp_path / "x")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "U8", "shape": [-2, -4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "PICKLE", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]},
        {"shape": [2]},
        "nothing",
    ],
)
def test_an_entry_that_does_not_fit_is_refused(tmp_path: Path, entry: object) -> None:
    path = _file(tmp_path / "x", {"t": entry}, bytes(8))
    for read in (read_tensors, check_tensors):
        with pytest.raises(CorruptDataError, match="x"):
            read(path)


NO_NUMBERS = ["Infinity", "-Infinity", "NaN", "1e999", "8.0", "8.5", "true", "null", '"8"', "[8]", "9" * 5000]


@pytest.mark.parametrize("number", NO_NUMBERS, ids=lambda text: text[:9])
@pytest.mark.parametrize("entry", ['"shape": [N], "data_offsets": [0, 8]', '"shape": [8], "data_offsets": [0, N]'])
def test_what_json_calls_a_number_and_is_no_length_is_refused(tmp_path: Path, entry: str, number: str) -> None:
    text = f'{{"t": {{"dtype": "U8", {entry.replace("N", number)}}}}}'.encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(CorruptDataError, match="x"):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize("shape", [[0, 2**70], [True] * 8, [1] * 100, [1] * 65])
def test_a_shape_that_numpy_cannot_have_is_refused(tmp_path: Path, shape: list[int]) -> None:
    size = 0 if 0 in shape else 1
    path = _file(tmp_path / "x", {"t": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}, bytes(size))
    assert len(refusals(path)) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        b"\xff" * 64,
        (10).to_bytes(8, "little") + b"{",
        b"\x02" + bytes(7) + b"[]",
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CorruptDataError):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("F64", "float64"), ("F32", "float32"), ("F16", "float16"), ("I64", "int64"), ("I32", "int32"), ("I16", "int16"),
     ("I8", "int8"), ("U8", "uint8"), ("BOOL", "bool"), ("U64", "uint64"), ("U32", "uint32"), ("U16", "uint16")],
)  # fmt: skip
def test_each_type_is_read_as_numpys(tmp_path: Path, dtype: str, name: str) -> None:
    values = np.array([[1, 0, 1]], name)
    header = {"t": {"dtype": dtype, "shape": [1, 3], "data_offsets": [0, values.nbytes]}}
    path = _file(tmp_path / "x", {"__metadata__": {"format": "pt"}, **header}, values.tobytes())
    check_tensors(path)
    found = read_tensors(path)
    assert list(found) == ["t"]
    assert (found["t"].dtype, found["t"].tolist()) == (values.dtype, values.tolist())


def test_a_header_may_have_16_mib_and_no_more(tmp_path: Path) -> None:
    text = b"{}" + b" " * ((16 << 20) - 2)
    assert refusals(_text(tmp_path / "x", text)) == []
    assert refusals(_text(tmp_path / "x", text + b" ")) == ["not a safetensors file: the header is too long"] * 2


def test_a_header_may_end_with_the_file_and_no_later(tmp_path: Path) -> None:
    assert refusals(_text(tmp_path / "x", b"{}", 2)) == []
    assert len(refusals(_text(tmp_path / "x", b"{}", 3))) == 2


def test_bytes_of_no_tensor_are_refused(tmp_path: Path) -> None:
    header = {"t": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}
    assert len(refusals(_file(tmp_path / "x", header, bytes(2)))) == 2


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [([0, 4], [4, 8], False), ([0, 4], [3, 7], True), ([2, 6], [0, 4], True), ([0, 8], [8, 8], False),
     ([0, 8], [2, 4], True), ([4, 8], [0, 4], False)],
)  # fmt: skip
def test_tensors_may_touch_and_not_overlap(
    tmp_path: Path, first: list[int], second: list[int], *, refused: bool
) -> None:
    header = {
        name: {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
        for name, (start, end) in (("a", first), ("b", second))
    }
    path = _file(tmp_path / "x", header, bytes(range(8)))
    if refused:
        with pytest.raises(CorruptDataError, match="invalid offset"):
            read_tensors(path)
    else:
        assert [array.tolist() for array in read_tensors(path).values()] == [
            list(range(*first)), list(range(*second)),
        ]  # fmt: skip


def test_three_tensors_of_which_the_longest_covers_the_last_are_refused(tmp_path: Path) -> None:
    offsets = {"a": [0, 8], "b": [8, 8], "c": [6, 8]}
    header = {name: {"dtype": "U8", "shape": [e - s], "data_offsets": [s, e]} for name, (s, e) in offsets.items()}
    with pytest.raises(CorruptDataError, match="invalid offset"):
        read_tensors(_file(tmp_path / "x", header, bytes(8)))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    for read in (read_tensors, check_tensors):
        with pytest.raises(CorruptDataError, match="missing: cannot be read: No such file"):
            read(tmp_path / "missing")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(len(data).to_bytes(8, "little") + data)
    with contextlib.suppress(CorruptDataError):
        assert isinstance(read_tensors(path), dict)
