"""Portable dropout: keep rate, independence, and equal bits on all devices and splits."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import torch

from plumbline.digest import digest_bytes
from plumbline.train import dropout
from plumbline.train.dropout import DropoutClock, PortableDropout, _bits, _fused, _row_keys, keep_mask

CPU = torch.device("cpu")


def mask(rows: int, each: int, rate: float = 0.1, **place: int) -> np.ndarray:
    given = {"seed": 7, "step": 0, "layer": 1, "first_row": 0, **place}
    return keep_mask((rows, each), rate, device=CPU, **given).numpy()


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_the_share_that_stays_is_right_to_four_sigma(rate: float) -> None:
    for step in range(20):
        kept = mask(64, 4096, rate, step=step)
        sigma = np.sqrt(rate * (1 - rate) / kept.size)
        assert abs(kept.mean() - (1 - rate)) < 4 * sigma


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return the correlation in units of chance."""
    a, b = (values.reshape(-1) - values.mean() for values in (one.astype(float), other.astype(float)))
    return abs(float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))) * np.sqrt(a.size)


@pytest.mark.parametrize("other", [{"step": 1}, {"layer": 2}, {"seed": 8}, {"first_row": 64}, {"step": 2**20}])
def test_masks_of_other_steps_layers_seeds_and_rows_have_nothing_in_common(other: dict[str, int]) -> None:
    assert correlation(mask(64, 8192, 0.5), mask(64, 8192, 0.5, **other)) < 4.5


@pytest.mark.parametrize("apart", [1, 2, 3, 31, 32, 64, 128, 768, 4096])
def test_neighbours_have_nothing_in_common(apart: int) -> None:
    for place in ({}, {"step": 5}, {"layer": 9}):
        kept = mask(128, 16384, 0.5, **place)
        assert correlation(kept[:, apart:], kept[:, :-apart]) < 4.5


def test_rows_have_nothing_in_common() -> None:
    kept = mask(64, 16384, 0.5)
    assert max(correlation(kept[apart:], kept[:-apart]) for apart in range(1, 33)) < 4.8


def test_the_same_bits_for_any_split_of_the_batch() -> None:
    whole = mask(12, 1000)
    parts = [mask(size, 1000, first_row=first) for first, size in ((0, 3), (3, 5), (8, 4))]
    assert np.array_equal(np.concatenate(parts), whole)


def test_the_bits_are_known() -> None:
    """A record of today must be comparable with one of next year, from another device."""
    assert digest_bytes(mask(4, 1000).tobytes())[:16] == "2ab32ced02872c03"


def test_it_drops_scales_and_goes_back_by_the_same_mask() -> None:
    module = PortableDropout(0.25, DropoutClock(seed=3))
    values = torch.ones(16, 256, requires_grad=True)
    dropped = module(values)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach())
    assert torch.equal(module.eval()(values), values)


def test_it_draws_nothing_from_torchs_generator() -> None:
    before = torch.get_rng_state()
    PortableDropout(0.5, DropoutClock(seed=3))(torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler meets torch's own
def test_one_kernel_or_a_dozen_the_bits_are_the_same() -> None:
    """What is compiled on a GPU, compiled here."""
    places = torch.arange(5000, dtype=torch.int32).unsqueeze(0)
    keys = torch.from_numpy(_row_keys(7, 3, 2, range(40, 48)).copy())
    given = (places, keys[:, 0:1], keys[:, 1:2], 1 << 22)
    assert torch.equal(_fused()(*given), _bits(*given))


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to find C compiler"), subprocess.CalledProcessError(1, "gcc"), OSError("noexec")]
)
def test_where_no_kernel_can_be_built_the_bits_are_the_same(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(dropout, "_fusing", True)
    monkeypatch.setattr(dropout, "_fused", fails)
    keys = torch.from_numpy(_row_keys(7, 3, 2, range(4)).copy())
    given = (torch.arange(50, dtype=torch.int32).unsqueeze(0), keys[:, 0:1], keys[:, 1:2], 1 << 22)
    assert torch.equal(dropout._fused_bits(*given), _bits(*given))
    assert dropout._fusing is False


@pytest.mark.gpu
def test_the_same_masks_on_a_gpu() -> None:
    for rate in (0.1, 0.5):
        for step in range(3):
            place = {"seed": 7, "step": step, "layer": 2, "first_row": 16}
            host = keep_mask((32, 12, 128, 128), rate, device=CPU, **place)
            device = keep_mask((32, 12, 128, 128), rate, device=torch.device("cuda"), **place)
            assert torch.equal(host, device.cpu())
