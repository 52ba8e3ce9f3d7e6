"""Patching of torch's functions where they compute: in `speed`, in mixed precision, or in compiled code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import is_mixed, is_unstrict, wrap_while


def unstrict(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function of `speed`."""
    wrap_while(is_unstrict, nn.functional, name, change)


def mixed(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function in mixed precision."""
    wrap_while(is_mixed, nn.functional, name, change)


def compiled(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function in compiled code."""
    wrap_while(torch.compiler.is_compiling, nn.functional, name, change)
