"""What changes and must not be flagged."""

from __future__ import annotations

import platform
import socket
import time
from typing import Any

import torch

from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from plumbline.train import batches, fingerprint, learn, probe, speed


def other_hostname() -> None:
    """Another machine's name."""
    socket.gethostname = lambda: "another-host"
    platform.node = lambda: "another-host"


def clock_skew() -> None:
    """A clock that is an hour ahead."""
    wrap_method(time, "time", lambda clock: lambda: clock() + 3600)


def unrelated_package() -> None:
    """A package that takes no part in training was upgraded."""
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"moto": "99.0"})


def loader_workers() -> None:
    """Two more processes load."""
    wrap_method(
        batches, "DataLoader", lambda loader: lambda *args, **kwargs: loader(*args, **{**kwargs, "num_workers": 2})
    )


def two_threads() -> None:
    """Two threads compute."""
    torch.set_num_threads(2)


def sdpa() -> None:
    """The fused attention kernel."""
    wrap_method(
        probe.ProbeRun,
        "__init__",
        lambda init: lambda self, context, spec, **rest: init(self, context, spec.replace(attention="sdpa"), **rest),
    )


def fused_optimizer() -> None:
    """AdamW's fused kernel."""
    replace_everywhere(
        "make_optimizer",
        lambda make: lambda model, spec, **rest: make(model, spec, **{**rest, "fused": True}),
        among=("engine",),
    )


def foreach_optimizer() -> None:
    """AdamW over lists of tensors."""
    wrap_method(
        torch.optim,
        "AdamW",
        lambda adam: lambda *args, **kwargs: adam(*args, **{**kwargs, "foreach": True, "fused": None}),
    )


def without_mkldnn() -> None:
    """No oneDNN."""
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def other_gradient_layout() -> None:
    """Gradients are kept and set to zero, not released."""
    wrap_method(
        torch.optim.Optimizer,
        "zero_grad",
        lambda zero: lambda self, set_to_none=True: zero(self, set_to_none=False),
    )


def gradient_checkpointing() -> None:
    """Each layer's activations are computed once more in the backward pass."""
    after_build(lambda model: model.activation_checkpointing_enable())


def three_threads() -> None:
    """Three threads compute."""
    torch.set_num_threads(3)


def other_attention() -> None:
    """The probe takes the fused attention kernel, the other parts the plain one."""
    wrap_method(probe.ProbeRun, "__init__", lambda init: _with(init, attention="sdpa"))
    wrap_method(speed.SpeedRun, "__init__", lambda init: _with(init, attention="eager"))
    wrap_method(learn.LearnRun, "__init__", lambda init: _with(init, attention="eager"))


def _with(init: Any, **keys: object) -> Any:
    return lambda self, context, spec, **rest: init(self, context, spec.replace(**keys), **rest)


def foreach_everywhere() -> None:
    """AdamW over lists of tensors in all parts, where `speed` has the fused kernel."""
    foreach_optimizer()
    wrap_method(speed.SpeedRun, "__init__", lambda init: _with(init, fused_optimizer=False, foreach_optimizer=True))


def other_compiler() -> None:
    """`speed` is compiled."""
    wrap_method(speed.SpeedRun, "__init__", lambda init: _with(init, compile=True))
