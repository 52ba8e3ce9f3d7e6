"""Eighth held-out set: harmless differences at production settings."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim import adam

from bench.faults.injectors.held_out_seventh.places import is_mixed, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train.engine import Engine

Tensor = torch.Tensor


def updates_of_a_release_one_by_one() -> None:
    """A release updates tensors one after the other where it is asked to update many at once."""
    wrap_method(adam, "_multi_tensor_adam", lambda _: adam._single_tensor_adam)


def norm_of_a_release_by_its_formula() -> None:
    """A release computes LayerNorm of mixed precision by its formula, in fp32."""

    def norm(plain: Any, value: Tensor, *rest: Any, **named: Any) -> Any:
        if named or len(rest) != 4 or rest[1] is None:
            return plain(value, *rest, **named)
        _, weight, bias, eps = rest
        centred = value.float() - value.float().mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias

    wrap_while(is_mixed, nn.functional, "layer_norm", norm)


def norms_of_gradients_logged() -> None:
    """A logger computes the norm of each gradient before it is clipped."""
    norms: list[Tensor] = []

    def wrap(update: Any) -> Any:
        def logged(self: Engine) -> None:
            norms.extend(value.grad.norm() for value in self.bare.parameters() if value.grad is not None)
            update(self)

        return logged

    wrap_method(Engine, "_update", wrap)


def weights_copied_after_each_step() -> None:
    """A watcher copies the state of model and optimizer after each step."""

    def wrap(step: Any) -> Any:
        def copied(self: Engine, *given: Any) -> Any:
            outcome = step(self, *given)
            copy.deepcopy((self.bare.state_dict(), self.optimizer.state_dict()))
            return outcome

        return copied

    wrap_method(Engine, "step", wrap)
