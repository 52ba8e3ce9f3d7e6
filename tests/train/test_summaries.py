"""Summaries of tensors: equal on every device and for every split into pieces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from plumbline.schema.sketch import BLOCK, sketch
from plumbline.train.digests import device_lanes, digest_each, host_array, lanes
from plumbline.train.watch.summaries import NUM_SIGNED, DeviceSummary, Summary, TensorSummary, read_rows


def _values(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)


def _norm(array: NDArray[Any]) -> float:
    flat = array.reshape(-1).astype(np.float64)
    return math.sqrt(float(np.dot(flat, flat)))


def _summary(value: torch.Tensor, *, unsigned: bool) -> Summary:
    started = TensorSummary(value, value.shape, unsigned=unsigned, sketched=True)
    started.add(value)
    return started.read(*read_rows([started])[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_pieces_have_the_digest_and_the_sketch_of_the_whole(dtype: torch.dtype) -> None:
    values = _values(BLOCK + 4001, dtype).reshape(4, -1)
    whole = TensorSummary(values[:1], values.shape, unsigned=False, sketched=True)
    for row in range(4):
        whole.add(values[row : row + 1], row * values.shape[1])
    found = whole.read(*read_rows([whole])[0][0])
    array = host_array(values)
    alone = _summary(values, unsigned=False)
    assert (found.sha256, found.shape, found.dtype) == (alone.sha256, tuple(values.shape), dtype)
    assert np.array_equal(found.sketch, sketch(array))
    assert found.norm == pytest.approx(_norm(array), rel=1e-12)
    assert alone.sha256 == digest_each({"a": values})["a"]
    assert alone.norm == pytest.approx(_norm(array), rel=1e-12)


def test_two_processes_parts_add_up_to_the_whole() -> None:
    values = _values(BLOCK + 4001).reshape(4, -1)
    whole, first, second = (TensorSummary(values, values.shape, unsigned=True, sketched=True) for _ in range(3))
    whole.add(values)
    first.add(values[:1])
    second.add(values[1:], values.shape[1])
    (numbers, sums), *parts = read_rows([whole, first, second])[0]
    assert np.array_equal(parts[0][1] + parts[1][1], sums)
    assert parts[0][0] + parts[1][0] == pytest.approx(numbers, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [1, 63, 64, 3 * 64 + 5, 64 * 4096 * 2 + 70])
def test_a_checksum_is_the_same_on_every_device_and_for_every_split(size: int, dtype: torch.dtype) -> None:
    values = _values(size).mul(100).to(dtype)
    whole, start, pieces = lanes(values), 0, torch.zeros(64, dtype=torch.int64)
    for piece in values.split(777):
        pieces += lanes(piece, start)
        start += len(piece)
    assert torch.equal(pieces, whole)
    # What a GPU computes, in main memory.
    assert torch.equal(device_lanes(values), whole)
    assert torch.equal(device_lanes(values[7:], 7) + device_lanes(values[:7]), whole)


@pytest.mark.parametrize("size", [2, 64, 5 * 64 + 3, 64 * 65_536 + 130])
def test_every_changed_bit_and_every_exchange_changes_the_checksum(size: int) -> None:
    values = _values(size)
    right, bits = lanes(values), values.view(torch.int32)
    for place in {0, 1, size // 2, size - 1}:
        for bit in (0, 22, 31):
            bits[place] ^= torch.tensor(1 << bit).to(torch.int32)
            assert not torch.equal(lanes(values), right)
            bits[place] ^= torch.tensor(1 << bit).to(torch.int32)
    exchanged = values.clone()
    exchanged[[0, size - 1]] = values[[size - 1, 0]]
    assert not torch.equal(lanes(exchanged), right)
    assert torch.equal(lanes(values), right)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tensor_with_other_signs_has_another_checksum(dtype: torch.dtype) -> None:
    """The highest bits of 8 bytes vanish from a sum of products in pairs."""
    values = _values(64 * 8, dtype).reshape(16, 32)
    for changed in (-values, torch.cat((-values[:8], values[8:]))):
        assert not torch.equal(lanes(values), lanes(changed))
        assert not torch.equal(device_lanes(values), device_lanes(changed))
        assert torch.equal(lanes(changed), device_lanes(changed))


def test_a_digest_tells_shapes_and_formats_apart() -> None:
    zeros = {str(shape): torch.zeros(shape) for shape in [(4,), (2, 2), (4, 1)]}
    zeros |= {str(dtype): torch.zeros(4, dtype=dtype) for dtype in (torch.float64, torch.bfloat16, torch.int32)}
    assert len(set(digest_each(zeros).values())) == len(zeros)


@pytest.mark.parametrize("size", [1, 768, BLOCK, 9 * BLOCK + 17])
@pytest.mark.parametrize("num_pieces", [1, 3])
def test_a_device_sums_the_same_sketch_and_norm(size: int, num_pieces: int) -> None:
    values = _values(size)
    device, start = DeviceSummary(torch.device("cpu")), 0
    for piece in values.chunk(num_pieces):
        device.add(piece, start)
        start += len(piece)
    row = device.numbers().numpy()
    expected, length = sketch(values.numpy()), _norm(values.numpy())
    assert np.linalg.norm(row[:64] - row[64:NUM_SIGNED] - expected) <= 2e-15 * length
    assert math.sqrt(row[NUM_SIGNED]) == pytest.approx(length, rel=1e-12)
    assert row[NUM_SIGNED + 1] == 0


def test_a_value_that_is_not_finite_is_noticed_on_host_and_device() -> None:
    values = _values(10)
    values[3] = float("nan")
    assert not _summary(values, unsigned=True).is_finite
    device = DeviceSummary(torch.device("cpu"))
    device.add(values, 0)
    assert device.numbers()[NUM_SIGNED + 1] == 1


def test_the_sign_of_zero_counts_only_where_it_is_asked_for() -> None:
    zeros = [torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])]
    signed, unsigned = ({_summary(each, unsigned=kind).sha256 for each in zeros} for kind in (False, True))
    assert (len(signed), len(unsigned)) == (2, 1)
