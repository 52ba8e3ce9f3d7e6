"""What a probe holds on its device and sends to the host, counted on the fake device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from plumbline.schema.spec import RunSpec
from plumbline.train import probe
from plumbline.train.engine import Observer
from plumbline.train.models import model as model_module
from plumbline.train.models.model import build_on_meta, fit_activations
from plumbline.train.portable import probe_windows
from plumbline.train.ranks import Ranks
from plumbline.train.watch import summaries
from plumbline.train.watch.recorder import Recorder
from tests.train.fake_memory import DEVICE, Counted, Drawn, sized
from tests.train.test_fake_device import _apply, _Reads

MIB = 1 << 20
ROWS, LENGTH, WIDTH = 16, 64, 768
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")


def _native(context: Any, spec: RunSpec) -> None:
    run = probe.ProbeRun(context, spec.probe)
    engine = run._engine()
    engine.observer = Recorder(engine, probe.ProbeBook(engine, [0]), updates=False)
    engine.step(0, next(context.batches(first=0, count=1)))


def _portable(context: Any, spec: RunSpec) -> None:
    trained = probe_windows.ProbeWindows(context, spec.probe)
    assert len(trained._train(1, frozenset({0})).windows) == 1


def _counted(train: Any, layers: int, patch: pytest.MonkeyPatch) -> Counted:
    """Train the step with taps, without its update, whose state hides the activations of so small a batch."""
    patch.setattr(Observer, "update", lambda _: True)
    patch.setattr(nn.Module, "_apply", _apply)
    patch.setattr(model_module, "_MOST_BYTES", 0)
    patch.setattr(summaries, "_MOST_BLOCKS", 1)
    for module in (probe_windows, probe):
        patch.setattr(module, "load_weights", lambda *_: None)
    spec = sized("base", layers=layers, length=LENGTH, batch_size=ROWS, probe={"steps": 2})
    counted = Counted()
    fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with fake, _Reads(), counted:
        train(Drawn(spec), spec)
    return counted


_LAYER = 4 * WIDTH * WIDTH + 8 * WIDTH * WIDTH + 13 * WIDTH
"""Parameters of one layer."""


@pytest.mark.long
def test_a_layer_of_the_windows_adds_its_weights_and_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, gradients, two copies while clipping, and the input; outputs are summed on the device."""
    few, many = (_counted(_portable, layers, monkeypatch) for layers in (1, 2))
    assert many.peak - few.peak <= 8 * (4 * _LAYER + 2 * ROWS * LENGTH * WIDTH)
    assert many.copied <= MIB


@pytest.mark.long
def test_a_probe_sends_numbers_to_the_host_and_waits_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    _Reads.waits = 0
    counted = _counted(_native, 1, monkeypatch)
    # The logits; the loss; batch fields and a row of 194 numbers per output and parameter.
    assert counted.copied <= MIB
    assert (counted.copies, _Reads.waits) == (3, 0)


@pytest.mark.parametrize(
    ("size", "layers", "length", "dtype", "is_large"),
    [
        ("base", 12, 128, torch.float64, False), ("base", 12, 512, torch.float64, True),
        ("base", 12, 128, torch.float32, False), ("large", 24, 512, torch.float32, True),
    ],
)  # fmt: skip
def test_the_spec_decides_what_is_computed_again(
    size: Any, layers: int, length: int, dtype: torch.dtype, is_large: bool
) -> None:
    spec = sized(size, layers=layers, length=length, batch_size=32, probe={"steps": 2})
    model = build_on_meta(spec.model, spec.task)
    assert fit_activations(model, spec, Ranks(device=DEVICE), dtype) is is_large
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules()) is is_large
