"""The pass in fp64 depends on no rounding of what it is given."""

from __future__ import annotations

from collections.abc import Callable

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


class Sampling(nn.Module):
    """Draws what it passes on, as a variational encoder does."""

    def __init__(self, draw: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.mean, self.width, self.draw = nn.Linear(6, 4), nn.Linear(6, 4), draw

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.draw(self.mean(rows), self.width(rows).exp())


DRAWS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "like": lambda mean, width: mean + torch.randn_like(width) * width,
    "distribution": lambda mean, width: torch.distributions.Normal(mean, width).rsample(),
    "in place": lambda mean, width: mean + torch.empty_like(width).normal_(std=2.0) * width,
    "evenly": lambda mean, width: mean + torch.rand_like(width) * width,
    "evenly in place": lambda mean, width: mean + torch.empty_like(width).uniform_(-1, 1) * width,
}


def _drawn(draw: str, seed: int) -> Fp64Pass:
    torch.manual_seed(1)
    model = Sampling(DRAWS[draw])
    torch.manual_seed(seed)
    return fp64_pass(model, (torch.ones(5, 6) / 3,), {})


def test_a_model_that_draws_has_a_pass_which_no_generator_moves() -> None:
    found = {draw: _drawn(draw, seed=2) for draw in DRAWS}
    assert not [each.lost for each in found.values() if each.lost]
    assert found == {draw: _drawn(draw, seed=3) for draw in DRAWS}
    assert len({each.outputs[-1] for each in found.values()}) == len(DRAWS)


def test_a_pass_with_a_draw_that_has_no_equal_numbers_is_lost() -> None:
    model = Sampling(lambda mean, width: mean + torch.empty_like(width).exponential_() * width)
    assert "draws numbers of this device's own" in fp64_pass(model, (torch.ones(5, 6),), {}).lost
