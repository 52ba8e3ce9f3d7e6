"""Summaries of tensors: equal on every device and for every split into pieces."""

from __future__ import annotations

import math
import threading
from contextlib import closing

import numpy as np
import pytest
import torch

from plumbline.schema.digest import digest_array
from plumbline.schema.sketch import BLOCK, sketch
from plumbline.train import digests
from plumbline.train.digests import HashThreads, TensorDigest, digest_tensors, host_array, norm, norms
from plumbline.train.summaries import NUM_SIGNED, DeviceSummary, Summaries, summarize


def _values(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_pieces_have_the_digest_and_the_sketch_of_the_whole(dtype: torch.dtype) -> None:
    values = _values(BLOCK + 4001, dtype).reshape(4, -1)
    summaries = Summaries("signed")
    whole = summaries.open(values[:1], values.shape)
    for row in range(4):
        whole.add(values[row : row + 1], row * values.shape[1])
    (found,) = summaries.read()
    array = host_array(values)
    assert (found.sha256, found.shape, found.dtype) == (digest_array(array), tuple(values.shape), dtype)
    assert np.array_equal(found.sketch, sketch(array))
    assert found.norm == pytest.approx(norm(array), rel=1e-12)
    (alone,) = summarize([values], "signed")
    assert (alone.sha256, alone.norm) == (digest_array(array), norm(array))


@pytest.mark.parametrize("size", [1, 768, BLOCK, 9 * BLOCK + 17])
@pytest.mark.parametrize("num_pieces", [1, 3])
def test_a_device_sums_the_same_sketch_and_norm(size: int, num_pieces: int) -> None:
    values = _values(size)
    device, start = DeviceSummary(torch.device("cpu")), 0
    for piece in values.chunk(num_pieces):
        device.add(piece, start)
        start += len(piece)
    row = device.numbers.numpy()
    expected, length = sketch(values.numpy()), norm(values.numpy())
    assert np.linalg.norm(row[:64] - row[64:NUM_SIGNED] - expected) <= 2e-15 * length
    assert math.sqrt(row[NUM_SIGNED]) == pytest.approx(length, rel=1e-12)
    assert row[NUM_SIGNED + 1] == 0


def test_a_value_that_is_not_finite_is_noticed_on_host_and_device() -> None:
    values = _values(10)
    values[3] = float("nan")
    assert not summarize([values], "signed")[0].is_finite
    device = DeviceSummary(torch.device("cpu"))
    device.add(values, 0)
    assert device.numbers[NUM_SIGNED + 1] == 1


def test_the_sign_of_zero_counts_only_where_it_is_asked_for() -> None:
    zeros = [torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])]
    signed, unsigned = ({each.sha256 for each in summarize(zeros, kind)} for kind in ("signed", "unsigned"))
    assert (len(signed), len(unsigned)) == (2, 1)


def test_tensors_of_a_device_wait_for_their_digest_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads' own road, on copies in main memory: never more than the bound, and every digest right."""
    monkeypatch.setattr(digests, "_MOST_BYTES", 40_000)
    most, lock, copy = [0], threading.Lock(), digests._host_copy

    def seen(tensor: torch.Tensor) -> object:
        with lock:
            most[0] = max(most[0], threads._waiting)
        return copy(tensor)

    monkeypatch.setattr(digests, "_host_copy", seen)
    tensors = [_values(1000 + place) for place in range(50)]
    with closing(HashThreads()) as threads:
        started = [TensorDigest(threads, value.dtype, value.shape) for value in tensors]
        for digest, value in zip(started, tensors, strict=True):
            for piece in value.split(400):
                digest._last = threads.start(digest._digest, piece, digest._last)
        found = [digest.hexdigest() for digest in started]
    assert found == [digest_array(value.numpy()) for value in tensors]
    assert 0 < most[0] <= 40_000


def test_norms_and_digests_of_many_tensors_are_those_of_each() -> None:
    tensors = {"a": _values(100), "b": _values(7, torch.bfloat16)}
    assert norms(tensors.values()) == [norm(host_array(value)) for value in tensors.values()]
    assert digest_tensors(tensors) == digest_tensors({name: value.clone() for name, value in tensors.items()})
