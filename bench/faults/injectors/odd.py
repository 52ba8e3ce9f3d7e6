"""Settings of honest trainings that no spec can state."""

from __future__ import annotations

from functools import partial

import torch

from bench.faults.injectors.patching import wrap_method


def high_loss_scale() -> None:
    """Loss scaling starts at 2^20, so that the first overflow is in the logits' gradient."""
    wrap_method(torch.amp, "GradScaler", lambda scaler: partial(scaler, init_scale=2.0**20))
