"""Settings of trainings that no spec can state: of an honest one, and TF32 where the spec says fp32."""

import torch
from torch.nn import functional

from bench.faults.injectors.hooks import straight_through
from bench.faults.injectors.patching import patch, replaces, with_keys
from plumbline.train import probe

_DROPPED = 13
"""Bits of the mantissa of fp32 that TF32 has not."""


def high_loss_scale():
    """Loss scaling starts at 2^20, so that the first overflow is in the logits' gradient."""
    patch(torch.amp, "GradScaler", with_keys(init_scale=2.0**20))


@replaces(probe, "apply_settings")
def tf32_switched_on(plain, *given, **named):
    """A library switches TF32 on for products of matrices on the GPU, after every setting was read back."""
    found = plain(*given, **named)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    return found


def _rounded(value):
    """Return a value of fp32 rounded to ten bits of mantissa, as a tensor core rounds its operands."""
    if value.dtype != torch.float32:
        return value
    integers = value.detach().contiguous().view(torch.int32)
    integers = ((integers + (1 << (_DROPPED - 1))) >> _DROPPED) << _DROPPED
    return straight_through(value, integers.view(torch.float32))


def tf32():
    """Products of matrices round their operands as TF32 does."""
    patch(functional, "linear", lambda plain, x, w, b=None: plain(_rounded(x), _rounded(w), b))
    patch(torch, "matmul", lambda plain, a, b, **named: plain(_rounded(a), _rounded(b), **named))
