"""Portable dropout mask as one Triton kernel, bitwise equal to module `dropout`."""

# Triton reads a kernel's annotations: none from the future, and none of its values.
import contextlib

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # builds of torch for a CPU have none
    triton = None


_BLOCK = 1024


if triton is not None:

    @triton.jit(do_not_specialize=["each", "key", "first_row", "limit"])  # type: ignore[untyped-decorator]
    def _keep(out, each, key, first_row, limit, block: tl.constexpr) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001, PLR0917
        # The row's key: the last round of splitmix64.
        row = tl.program_id(1)
        mixed = (key.to(tl.int64) ^ (first_row.to(tl.int64) + row)).to(tl.uint64) + 0x9E3779B97F4A7C15
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB
        mixed = mixed ^ (mixed >> 31)
        place = tl.program_id(0) * block + tl.arange(0, block)
        word = place.to(tl.uint32) ^ mixed.to(tl.uint32)
        word = (word ^ (word >> 16)) * 0x7FEB352D
        word = (word ^ (word >> 15)) * 0x846CA68B
        word = (word ^ (word >> 16)) ^ (mixed >> 32).to(tl.uint32)
        word = (word ^ (word >> 16)) * 0x7FEB352D
        word = (word ^ (word >> 15)) * 0x846CA68B
        word = word ^ (word >> 16)
        kept = (word >> 8) >= limit.to(tl.uint32)
        tl.store(out + row.to(tl.int64) * each + place, kept.to(tl.uint8), mask=place < each)


def fused_bits(rows: int, each: int, key: int, first_row: int, limit: int, device: torch.device) -> torch.Tensor:  # noqa: PLR0917
    """Return the dropout mask from a Triton kernel; raise `AttributeError` without Triton."""
    out = torch.empty((rows, each), dtype=torch.uint8, device=device)
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        _keep[(triton.cdiv(each, _BLOCK), rows)](out, each, key, first_row, limit, block=_BLOCK)
    return out.view(torch.bool)
