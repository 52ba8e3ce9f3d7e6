"""The pass in fp64 depends on no rounding of what it is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from plumbline.schema.captured import Fp64Pass
from plumbline.train.capture.window import fp64_pass


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (self.inner(rows) @ rows.T + mask).softmax(-1)


def _pass(rows: torch.Tensor, mask: torch.Tensor) -> Fp64Pass:
    torch.manual_seed(1)
    return fp64_pass(Masked(), (rows, mask), {})


def test_inputs_that_round_differently_give_the_same_pass() -> None:
    rows, mask = torch.randn(6, 6), torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    first, second = _pass(rows, mask), _pass(rows * (1 + 1e-6), mask)
    assert not first.lost
    assert first == second


@pytest.mark.parametrize("change", [0.0, 2.0])
def test_another_mask_or_size_is_another_input(change: float) -> None:
    rows, mask = torch.randn(6, 6), torch.eye(6)
    assert _pass(rows, mask).fed != _pass(rows * change if change else rows, mask if change else 1 - mask).fed
