"""The trainer on a fake device, where mixing host and device tensors fails.

The tensors are fake: they have a shape, a type and a device, but no values; an operation over two devices, or NumPy
asking for a tensor that lies on the device, raises as it does on a GPU. The device is called `meta`, for a build of
torch without CUDA cannot go back through tensors of a device whose guard it lacks. What hangs on the name `cuda` is not
seen: autocast, loss scaling, pinned memory, events, NVML, and which kernels are deterministic.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.schema.experiment import Experiment
from plumbline.schema.spec import RunSpec
from plumbline.train import engine_state, replay, windows
from plumbline.train.context import Context
from plumbline.train.engine import Engine
from plumbline.train.experiment import ExperimentRun
from plumbline.train.job import TrainJob, prepare_context
from plumbline.train.learn import LearnRun
from plumbline.train.models import dropout
from plumbline.train.portable import probe_windows
from plumbline.train.probe import ProbeRun
from plumbline.train.ranks import Ranks
from plumbline.train.replay import Bundle
from plumbline.train.source import open_source
from plumbline.train.speed_engine import make_engine
from plumbline.train.watch.step_log import StepLogger
from tests.train.conftest import Workshop

DEVICE = torch.device("meta")
STEPS, ROWS, LENGTH, WIDTH = 2, 8, 16, 64
PARTS: dict[str, Any] = {
    "probe": {"steps": STEPS, "evaluation_rows": 8, "tap_steps": [0], "portable_steps": 1},
    "learn": {"steps": 4, "evaluate_every": 2, "evaluation_rows": 8, "checkpoint_every": 1000},
}
SPEED: dict[str, Any] = {"steps": 10, "precision": "fp32", "fused_optimizer": False}
MIXED = "two devices|on the device"
# Taps ask buffers where they lie, and the state of a generator is read: both get an answer that nobody builds on.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")]


# One layer has every operation of two, and an operation on fake tensors costs a hundred times a real one of this size.
@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("classification"), "sequence-classification", num_layers=1)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("masked"), "masked-lm", num_layers=1)


class _Reads(TorchFunctionMode):
    """Fake values for code that reads a tensor on the fake device; each read makes the host wait."""

    _answers = {"item": 0.5, "__float__": 0.5, "__int__": 1, "__bool__": False}
    waits = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if func is nn.functional.embedding and args[0].device != args[1].device:
            raise RuntimeError("indices and table lie on two devices")  # of `meta` alone torch lets it pass
        if isinstance(first, FakeTensor) and name in self._answers:
            _Reads.waits += first.device.type != "cpu"
            return self._answers[name]
        if isinstance(first, FakeTensor) and name == "numpy":
            if first.device.type != "cpu":
                raise TypeError("NumPy cannot read what lies on the device")
            return np.zeros([int(size) for size in first.shape], str(first.dtype).removeprefix("torch."))
        return func(*args, **(kwargs or {}))


class _Copies(TorchDispatchMode):
    """Counter of copies between host and device for which the host waits."""

    waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, given = func(*args, **(kwargs or {})), kwargs or {}
        if func in {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}:
            source = args[1] if func is torch.ops.aten.copy_.default else args[0]
            is_blocking = not given.get("non_blocking", len(args) > 2 and args[2])
            self.waits += is_blocking and source.device != result.device
        return result


def _count_waits(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of waits of each step of an engine."""
    plain, found = Engine.step, list[int]()

    def counted(self: Engine, step: int, batch: Any) -> Any:
        _Reads.waits = 0
        with _Copies() as copies:
            outcome = plain(self, step, batch)
        if self.observer._members and isinstance(self.observer._members[0], StepLogger):
            found.append(copies.waits + _Reads.waits)
        return outcome

    patch.setattr(Engine, "step", counted)
    return found


def _apply(self: nn.Module, change: Any, recurse: bool = True) -> nn.Module:  # noqa: ARG001 - torch's own signature
    """`nn.Module._apply` with new parameters in place of the old: fake ones cannot be swapped, as torch does it."""
    made: dict[int, nn.Parameter] = {}
    old = []
    for module in self.modules():
        for name, value in module._parameters.items():
            if value is not None:
                old.append(value)  # keeps its id from being given again
                if id(value) not in made:
                    made[id(value)] = nn.Parameter(change(value.detach()), value.requires_grad)
                module._parameters[name] = made[id(value)]
        for name, value in module._buffers.items():
            module._buffers[name] = value if value is None else change(value)
    return self


@contextlib.contextmanager
def on_the_device(workshop: Workshop, spec: RunSpec, patch: pytest.MonkeyPatch) -> Iterator[Context]:
    """Return a run on the fake device, ready for its parts."""
    patch.setattr(nn.Module, "_apply", _apply)
    # A generator's state has no memory here, and so cannot be set.
    patch.setattr(engine_state, "restore_states", lambda _: None)
    # Products have no values here, and so cannot be checked.
    for module in (windows, probe_windows):
        patch.setattr(module, "check_products", lambda *_: None)
    job = TrainJob(spec, workshop.out(), workshop.url, workshop.folder / "cache", "here", "r")
    with open_source(spec, workshop.url, job.cache) as source:
        context = prepare_context(job, Ranks(device=DEVICE), source, threading.Event())
        with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()), _Reads():
            yield context


@pytest.mark.parametrize("task", ["workshop", "masked"])
def test_the_probe_and_its_fp64_run(task: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop = request.getfixturevalue(task)
    with on_the_device(workshop, workshop.spec(**PARTS), monkeypatch) as context:
        probe = ProbeRun(context, context.spec.probe)
        probe.run()
        evidence = probe.evidence()
    assert evidence.num_steps == STEPS
    assert {tap.stage for tap in evidence.taps} == {"forward", "gradient", "optimizer"}
    assert evidence.evaluation.num_rows == 8


def test_learning_with_portable_dropout_waits_for_nothing(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = workshop.spec(**PARTS, optimizer={"accumulation_steps": 2})
    waits = _count_waits(monkeypatch)
    with on_the_device(workshop, spec, monkeypatch) as context:
        learn = LearnRun(context, spec.learn)
        learn.run()
        assert len(learn.evidence().losses) == 4
    assert waits == [0, 0]  # two further steps prove themselves


@pytest.mark.parametrize("task", ["workshop", "masked"])
def test_a_step_of_speed_waits_for_nothing(
    task: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = request.getfixturevalue(task)
    spec = workshop.spec(probe=None, speed={**SPEED, "attention": "eager"})
    waits = _count_waits(monkeypatch)
    with on_the_device(workshop, spec, monkeypatch) as context:
        engine = make_engine(context, spec, spec.speed, dropout=0.1, steps=3, ranks=context.ranks)
        with StepLogger(engine).watching():
            for step, batch in enumerate(context.batches(first=0, count=3)):
                engine.step(step, batch)
    assert waits[1:] == [0, 0]  # the first step copies the keys of the log


def bundle() -> Bundle:
    """Return a bundle with a replay at every possible rung."""
    layer, weight = "bert.encoder.layer.0", "bert.pooler.dense.weight"
    tensors = {name: torch.zeros(STEPS, ROWS, LENGTH, dtype=torch.int32) for name in ("input_ids", "attention_mask")}
    tensors |= {weight: torch.ones(WIDTH, WIDTH), f"forward/0/{layer}": torch.ones(ROWS, LENGTH, WIDTH)}
    tensors |= {f"{rung}/0/{weight}": torch.ones(WIDTH, WIDTH) for rung in ("gradient", "clipped")}
    held = {"batch": ["input_ids", "attention_mask"], "weights": [weight], "forward": [layer]}
    held |= {"gradient": [weight], "clipped": [weight]}
    replays = [
        {"stage": rung, "source": "s.safetensors", "fields": fields, "step": None if rung == "batch" else 0}
        for rung, fields in held.items()
    ]
    replays += [{"stage": rung} for rung in ("settings", "loss", "optimizer", "schedule", "evaluation")]
    captures = [{"stage": rung, "names": [], "step": 0} for rung in ("weights", "forward", "gradient", "clipped")]
    body = {"experiment_id": "e", "steps": STEPS, "replays": replays, "captures": captures}
    return Bundle(Experiment.model_validate(body), {"s.safetensors": tensors})


def test_an_experiment_that_puts_everything_back(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_the_device(workshop, workshop.spec(**PARTS), monkeypatch) as context:
        context.is_checked = False
        run = ExperimentRun(context, context.spec.probe, bundle())
        run.run()
        kept = run.arrays()["capture"]
    assert {"forward/0/bert.encoder.layer.0", "clipped/0/bert.pooler.dense.weight"} <= set(kept)


def _mask_on_the_host(patch: pytest.MonkeyPatch) -> None:
    keep = dropout.keep_mask
    host = torch.device("cpu")
    patch.setattr(dropout, "keep_mask", lambda *shape, **given: keep(*shape, **{**given, "device": host}))


def _batch_on_the_host(patch: pytest.MonkeyPatch) -> None:
    split = Engine._micro_batches

    def unmoved(self: Engine, batch: Any) -> Any:
        yield from ((dict(batch), share) for _, share in split(self, batch))

    patch.setattr(Engine, "_micro_batches", unmoved)


def _read_without_moving(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("plumbline.train.evaluation.host_array", lambda tensor: tensor.detach().numpy())


@pytest.mark.parametrize("fault", [_mask_on_the_host, _batch_on_the_host, _read_without_moving])
def test_mixed_devices_are_noticed(fault: Any, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this module is worth: each of these would pass on a CPU."""
    fault(monkeypatch)
    spec = workshop.spec(**PARTS)
    with on_the_device(workshop, spec, monkeypatch) as context, pytest.raises((RuntimeError, TypeError), match=MIXED):
        LearnRun(context, context.spec.learn).run()


def test_an_imposed_tensor_left_on_the_host_is_noticed(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    impose = replay._Imposed.forward
    monkeypatch.setattr(
        replay._Imposed, "forward", staticmethod(lambda context, own, wanted: impose(context, own, wanted.cpu()))
    )
    spec = workshop.spec(**PARTS)
    with on_the_device(workshop, spec, monkeypatch) as context, pytest.raises(RuntimeError, match=MIXED):
        ExperimentRun(context, context.spec.probe, bundle()).run()
