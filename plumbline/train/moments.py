"""The optimizer's state by parameter name, to capture and to restore it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from plumbline.errors import InvalidInputError
from plumbline.train.engine import Engine

_COUNT = "step"
"""The only scalar of AdamW's state, which a file of tensors contains with one element."""


def read_moments(engine: Engine) -> dict[str, torch.Tensor]:
    """Return the tensors of the optimizer's state by `{parameter}/{key}`."""
    state = engine.optimizer.state
    return {
        f"{name}/{key}": entry
        for name, value in engine.bare.named_parameters()
        for key, entry in (state.get(value) or {}).items()
        if isinstance(entry, torch.Tensor)
    }


def restore_moments(engine: Engine, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set the optimizer's state; a parameter without any gets one."""
    parameters = dict(engine.bare.named_parameters())
    for place, wanted in tensors.items():
        name, _, key = place.rpartition("/")
        if name not in parameters:
            raise InvalidInputError("is no parameter here", where="experiment", key=f"moments of {name}")
        value = parameters[name]
        if key == _COUNT:
            # The count stays on the host, as torch keeps it there for optimizers that are not fused.
            engine.optimizer.state[value][key] = wanted.reshape(()).clone()
            continue
        if wanted.shape != value.shape:
            shapes = f"{tuple(wanted.shape)}, the run's is {tuple(value.shape)}"
            raise InvalidInputError(f"has the shape {shapes}", where="experiment", key=f"moments of {name}")
        engine.optimizer.state[value][key] = wanted.to(value)
