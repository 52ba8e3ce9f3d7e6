"""A recorder breaks no loop, changes no bit of it, and accuses no honest one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import plumbline
from tests.said import said

from .shapes import SHAPES, STEPS

WITHOUT_FORM = {"raising", "second_order"}
"""Loops whose forward pass has no formula in fp64."""


def _trained(name: str, folder: Path | None) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Return the state and the generators behind a loop, recorded or not."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - the loop's own
    model, optimizer, loop, *more = SHAPES[name]()
    if folder is None:
        loop(lambda *_: None)
    else:
        with plumbline.capture(folder, model, optimizer, steps=STEPS, seed=3, **(more[0] if more else {})) as run:
            loop(run.step)
    whole = nn.ModuleDict(model) if isinstance(model, dict) else model
    state = {key: value.detach().clone() for key, value in whole.state_dict().items()}
    return state, [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # noqa: NPY002


@pytest.mark.filterwarnings("ignore:dropout2d")
@pytest.mark.parametrize("name", SHAPES)
def test_a_loop_trains_the_same_bits_and_its_record_passes(name: str, tmp_path: Path) -> None:
    plain, generators = _trained(name, None)
    for folder in ("a", "b"):
        state, others = _trained(name, tmp_path / folder)
        assert all(torch.equal(value, plain[key]) for key, value in state.items())
        assert others == generators
    first, second = (plumbline.read_record(tmp_path / folder) for folder in ("a", "b"))
    probe, captured = first.record.evidence.probe, first.record.evidence.captured
    refused = ["the functions of the first step: RuntimeError: out of memory, says the loop"] * (name == "raising")
    assert [why for why in captured.unknown if "Error" in why] == refused
    assert bool(captured.functions.calls) is not bool(refused)
    assert captured.window.lost == "" or name in WITHOUT_FORM
    assert probe.num_steps == STEPS
    assert set(probe.num_rows) == {5 if name != "adversaries" else 20}
    beside, alone = plumbline.compare(first, second, throughput=False), plumbline.judge_alone(first)
    assert (beside.verdict, [said(cause.why) for cause in beside.causes]) == ("pass", [])
    assert [said(cause.why) for cause in alone.causes] == []
    assert alone.verdict == ("inconclusive" if not any(proof.errors for proof in probe.proofs) else "pass")
