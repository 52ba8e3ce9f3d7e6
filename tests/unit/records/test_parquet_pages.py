"""Sizes of pages, read from headers that are written here byte by byte."""

from __future__ import annotations

import pytest

from plumbline.records.part_sizes import unpacked_bytes

DATA_PAGE = 0
STOP = b"\x00"


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def i32(value: int, *, step: int = 1) -> bytes:
    """Return a field of type i32, `step` fields after the last one: zigzag."""
    return bytes([step << 4 | 5]) + varint(2 * value)


def page(unpacked: int, packed: int, rest: bytes = b"") -> bytes:
    """Return a page: type, sizes, further fields, the end of its header, and its content."""
    return i32(DATA_PAGE) + i32(unpacked) + i32(packed) + rest + STOP + bytes(packed)


def struct(fields: bytes, *, step: int = 2) -> bytes:
    return bytes([step << 4 | 12]) + fields + STOP


def test_sizes_of_all_pages_are_summed() -> None:
    first, second = page(1000, 7), page(300_000, 200)
    assert unpacked_bytes(first, 0, len(first)) == 1000
    data = b"PAR1" + first + second + b"the next column"
    assert unpacked_bytes(data, 4, 4 + len(first) + len(second)) == 301_000
    assert unpacked_bytes(data, 4, 4) == 0


@pytest.mark.parametrize("size", [0, 1, 63, 64, 127, 128, 8191, 8192, 2**31 - 1, 2**62])
def test_a_size_of_any_length_is_read(size: int) -> None:
    data = page(size, 3)
    assert unpacked_bytes(data, 0, len(data)) == size


FIELDS = {
    "a true boolean": b"\x11",
    "a false boolean": b"\x12",
    "a byte": b"\x13\x07",
    "a short": b"\x14\x81\x01",
    "an integer": i32(5),
    "a long integer": b"\x16\xff\xff\x01",
    "a double": b"\x17" + bytes(range(1, 9)),
    "text": b"\x18" + varint(200) + b"\x15" * 200,
    "no text": b"\x18\x00",
    "a structure": struct(i32(80) + i32(0)),
    "structures within structures": struct(struct(struct(i32(1)))),
}


@pytest.mark.parametrize("name", FIELDS)
def test_further_fields_of_a_header_are_skipped(name: str) -> None:
    data = page(11, 3, FIELDS[name] + i32(2)) + page(13, 2)
    assert unpacked_bytes(data, 0, len(data)) == 24


@pytest.mark.parametrize("depth", [3, 4, 50])
def test_four_levels_of_structures_are_read_and_no_more(depth: int) -> None:
    fields = i32(1)
    for _ in range(depth):
        fields = struct(fields)
    data = page(11, 3, fields)
    if depth <= 3:
        assert unpacked_bytes(data, 0, len(data)) == 11
    else:
        with pytest.raises(ValueError, match="header is malformed"):
            unpacked_bytes(data, 0, len(data))


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 1000), (1001, 1002)])
def test_a_column_outside_of_the_file_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="outside of the file"):
        unpacked_bytes(page(1, 1), start, end)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_column_ends_where_its_last_page_does(change: int) -> None:
    data = page(1, 10)
    with pytest.raises(ValueError, match=r"longer than its column|does not start"):
        unpacked_bytes(data + b"!", 0, len(data) + change)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("field", "words"),
    [
        (b"\x15\x01", "negative size"),
        (b"\x15\x83\x01", "negative size"),
        (b"\x25\x02", "does not start with its sizes"),
        (b"\x16\x02", "does not start with its sizes"),
        (b"\x15" + b"\x80" * 10 + b"\x00", "is cut off"),
    ],
)
def test_a_size_that_is_none_is_refused(place: int, field: bytes, words: str) -> None:
    fields = [i32(DATA_PAGE), i32(5), i32(3)]
    fields[place] = field
    data = b"".join(fields) + STOP + bytes(30)
    with pytest.raises(ValueError, match=words):
        unpacked_bytes(data, 0, len(data))


@pytest.mark.parametrize("length", range(1, 7))
def test_a_header_that_is_cut_off_is_refused(length: int) -> None:
    data = (i32(DATA_PAGE) + i32(5) + i32(3))[:length]
    with pytest.raises(ValueError, match=r"cut off|malformed|does not start"):
        unpacked_bytes(data, 0, len(data))


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (b"\x05\x08\x02", "header is malformed"),  # the long form of a field's number
        (b"\x19\x15\x02", "field of an unknown type"),  # a list
        (b"\x1d\x02", "field of an unknown type"),
        (struct(b"\x1a\x02"), "field of an unknown type"),
    ],
)
def test_fields_that_no_header_of_a_page_has_are_refused(rest: bytes, words: str) -> None:
    data = page(11, 3, rest)
    with pytest.raises(ValueError, match=words):
        unpacked_bytes(data, 0, len(data))
