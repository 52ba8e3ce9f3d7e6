"""Checksums of all weights before each step, computed on the device.

A digest would copy every weight to the host at each step. Sums of the weights' bits as integers do not: they are exact
in any order, so that equal weights have equal sums on every device.
"""

from __future__ import annotations

import torch
from torch import nn

from plumbline.digest import digest_array
from plumbline.train.digests import host_array

MAX_TRAIL = 10_001
_LANES = 64
"""Number of sums. A moved value changes its lane, unless it moved by a multiple of 64 places."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd factor between parameters, so that exchanged parameters differ. The products wrap around."""
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
_DIGITS = 16


def _lanes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sums of a tensor's words, int64 [64]."""
    if hasattr(tensor, "full_tensor"):  # a process's shard of FSDP2
        tensor = tensor.full_tensor()
    words = tensor.detach().contiguous().reshape(-1).view(_WORDS[tensor.element_size()])
    whole = len(words) // _LANES * _LANES
    sums = words[:whole].view(-1, _LANES).sum(0, dtype=torch.int64)
    if whole < len(words):
        sums[: len(words) - whole] += words[whole:]
    return sums


class WeightsTrail:
    """Checksums of a model's parameters, one for each call of `add`."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._sums: list[torch.Tensor] = []

    def add(self) -> None:
        """Keep the checksum of the present weights; do not wait for the device."""
        if len(self._sums) >= MAX_TRAIL:
            return
        total = torch.zeros(_LANES, dtype=torch.int64, device=self._parameters[0].device)
        for parameter in self._parameters:
            total = total * _FACTOR + _lanes(parameter)
        self._sums.append(total)

    def digests(self) -> tuple[str, ...]:
        """Return the first 16 hex digits of each checksum's digest."""
        return tuple(digest_array(host_array(total))[:_DIGITS] for total in self._sums)
