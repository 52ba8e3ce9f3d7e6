"""Portable dropout: keep rate, independence, and equal bits on all devices and splits."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from plumbline.schema.digest import digest_bytes
from plumbline.train.models import dropout
from plumbline.train.models.dropout import DropoutClock, PortableDropout, bits_form, keep_mask, plain_bits

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


@pytest.mark.parametrize("fault", ["missing", "broken", "different"])
def test_where_the_kernel_cannot_be_used_the_plain_form_makes_the_masks(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build of torch without Triton, a machine without a C compiler, or a kernel with other bits."""

    def fused_bits(*given: Any) -> torch.Tensor:
        if fault == "broken":
            raise subprocess.CalledProcessError(1, "gcc")
        return ~plain_bits(*given)

    module = None if fault == "missing" else SimpleNamespace(fused_bits=fused_bits)
    monkeypatch.setitem(sys.modules, "plumbline.train.models.dropout_kernel", module)
    monkeypatch.setattr(dropout, "plain_bits", lambda *given: plain_bits(*given[:-1], CPU))
    assert bits_form.__wrapped__(torch.device("cuda")) is dropout.plain_bits


@pytest.mark.triton
def test_the_kernel_has_the_bits_of_the_plain_form() -> None:
    """Triton's own interpreter runs the kernel on a CPU."""
    code = (
        "import torch; from plumbline.train.models.dropout import plain_bits, _key\n"
        "from plumbline.train.models.dropout_kernel import fused_bits\n"
        "for at in [(3, 2050, _key(7, 3, 2), 40, 1 << 22), (2, 7, _key(2**63 - 1, 0, 1), 0, 1), (1, 1024, 1, 1, 1)]:\n"
        "    assert torch.equal(fused_bits(*at, torch.device('cpu')), plain_bits(*at, torch.device('cpu'))), at\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})


@pytest.mark.gpu
def test_the_same_masks_on_a_gpu() -> None:
    for rate in (0.1, 0.5):
        for step in range(3):
            place = {"seed": 7, "step": step, "layer": 2, "first_row": 16}
            host = keep_mask((32, 12, 128, 128), rate, device=CPU, **place)
            device = keep_mask((32, 12, 128, 128), rate, device=torch.device("cuda"), **place)
            assert torch.equal(host, device.cpu())
