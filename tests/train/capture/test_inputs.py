"""What a model gave before is no data when it is given again: a generated image, or a state that is carried on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import plumbline
from plumbline.records import LoadedRecord
from plumbline.train.capture import capture
from plumbline.train.capture.steps import float_sketch
from plumbline.train.capture.tensors import arguments, sampled

STEPS = 5


def adversaries(folder: Path, rate: float = 0.1) -> tuple[LoadedRecord, list[list[float]]]:
    """Train a generator and a discriminator; return the record, and a sketch of the real rows of each step."""
    torch.manual_seed(1)
    made, told = nn.Linear(3, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(made.parameters(), lr=rate), torch.optim.SGD(told.parameters(), lr=0.1)]
    real_rows = []
    with capture(folder, {"G": made, "D": told}, optimizers, steps=STEPS, seed=3) as run:
        for _ in range(STEPS):
            real, noise = torch.randn(6, 4), torch.randn(6, 3)
            real_rows.append(float_sketch(real).tolist())
            fake = made(noise)
            loss = functional.softplus(-told(real)).mean() + functional.softplus(told(fake.detach())).mean()
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            loss = functional.softplus(-told(fake)).mean()
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            run.step(loss=loss)
    return plumbline.read_record(folder), real_rows


def test_generated_rows_are_no_input_and_hide_no_cause(tmp_path: Path) -> None:
    record, real = adversaries(tmp_path / "first")
    captured = record.record.evidence.captured
    assert [list(each or ()) for each in captured.inputs["D.input"]] == real
    assert len(captured.inputs["G.input"]) == STEPS
    other, _ = adversaries(tmp_path / "second", rate=0.2)
    judgement = plumbline.compare(record, other, throughput=False)
    assert [cause.code for cause in judgement.causes] == ["schedule"]


def test_a_carried_state_is_no_input(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.GRU(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = torch.zeros(1, 2, 4)
    with capture(tmp_path / "record", model, optimizer, steps=STEPS, seed=3) as run:
        for _ in range(STEPS):
            output, state = model(torch.randn(5, 2, 3), state.detach())
            optimizer.zero_grad()
            output.square().mean().backward()
            optimizer.step()
            run.step()
    captured = plumbline.read_record(tmp_path / "record").record.evidence.captured
    assert captured.inputs["hx"][1:] == (None,) * (STEPS - 1)
    assert all(captured.inputs["input"])


def decorated(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def wrapper(*given: Any, **named: Any) -> Any:
        return forward(*given, **named)

    return wrapper


class Named(nn.Module):
    def forward(self, rows: Any, mask: Any = None, *more: Any, **named: Any) -> None: ...

    @decorated
    def wrapped(self, rows: Any, mask: Any = None) -> None: ...


MODULE = Named()
HOOKED = functools.update_wrapper(functools.partial(Named.wrapped, MODULE), MODULE.wrapped)


@pytest.mark.parametrize(
    ("forward", "given", "names"),
    [
        (MODULE.forward, (1, 2), ["rows", "mask"]),
        (MODULE.forward, (1, 2, 3), ["rows", "mask", "args"]),
        (MODULE.wrapped, (1, 2), ["rows", "mask"]),
        (decorated(MODULE.wrapped), (1, 2), ["rows", "mask"]),
        (HOOKED, (1, 2), ["rows", "mask"]),
        (lambda rows: rows, (1,), ["rows"]),
        (functools.partial(MODULE.forward), (1, 2), ["0", "1"]),
    ],
)  # fmt: skip
def test_an_argument_has_the_name_of_its_signature(
    forward: Callable[..., Any], given: tuple[int, ...], names: list[str]
) -> None:
    assert list(arguments(forward, given, {})) == names
    assert arguments(forward, given[:1], {"more": 9}) == {names[0]: 1, "more": 9}


def test_a_sample_reads_a_tensor_in_its_own_order() -> None:
    values = [torch.randn(70, 90), torch.randn(3, 5), torch.randn(()), torch.randn(6, 4, 3, 3).bfloat16()]
    device = torch.device("cpu")
    for tensor in values:
        changed = tensor.clone()
        changed.view(-1)[min(63, tensor.numel() - 1)] += 1
        assert not torch.equal(sampled([tensor], device), sampled([changed], device))
        if tensor.dim() > 1:
            transposed = tensor.transpose(0, -1).contiguous().transpose(0, -1)
            assert not transposed.is_contiguous()
            assert torch.equal(sampled([tensor], device), sampled([transposed], device))
    assert not torch.equal(sampled(values, device), sampled(values[::-1], device))
    assert torch.equal(sampled([None, values[0]], device), sampled(values[:1], device))
