"""Settings of honest trainings that no spec can state."""

import torch

from bench.faults.injectors.patching import patch, with_keys


def high_loss_scale():
    """Loss scaling starts at 2^20, so that the first overflow is in the logits' gradient."""
    patch(torch.amp, "GradScaler", with_keys(init_scale=2.0**20))
