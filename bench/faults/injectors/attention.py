"""Faults of attention's kernels in `speed`, at production settings."""

import torch
from torch.nn import functional

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.patching import SDPA, is_compiling, is_unstrict, patch, replaces, with_keys
from plumbline.train import batches

_REACHED = 16


@fault("operator", "fp32", OTHER_ISA)
def sdpa_values_of_the_row_before():
    """The fused kernel reads the values of the last row of a batch from the row before it."""
    patch(functional, SDPA, lambda plain, q, k, v, **named: plain(q, k, torch.cat((v[:-1], v[-2:-1])), **named))


@fault("rng", "bf16")
def sdpa_without_dropout():
    """The fused kernel takes a probability of dropout and drops nothing."""
    patch(functional, SDPA, with_keys(dropout_p=0.0))


@fault("rng", "eager")
@replaces(functional, "dropout", is_unstrict)
def eager_masks_shared_by_heads(plain, value, *given, **named):
    """All heads of eager attention drop the same elements."""
    if value.dim() != 4:
        return plain(value, *given, **named)
    return value * plain(torch.ones_like(value[:, :1]), *given, **named)


@fault("gradient", "compiled", NOISE)
@replaces(functional, SDPA, is_compiling)
def compiled_late_values_without_gradient(plain, query, key, value, **named):
    """The backward pass of compiled attention does not reach values behind the sixteenth."""
    reached = torch.cat((value[..., :_REACHED, :], value[..., _REACHED:, :].detach()), -2)
    return plain(query, key, reached, **named)


@fault("operator", "fp16")
@replaces(functional, SDPA)
def sdpa_dropout_not_rescaled(plain, *given, dropout_p=0.0, **named):
    """The fused kernel drops elements and does not rescale those that it keeps."""
    return plain(*given, dropout_p=dropout_p, **named) * (1 - dropout_p)


@fault("operator", "packed")
def packed_positions_start_at_one():
    """Positions of a packed text start at one."""

    def later(self):
        length = self.source.shape[1]
        return (self.source % length + 1).clamp(max=length - 1)

    batches.Packing.positions = property(later)


@fault("rng", "bf16")
@replaces(functional, SDPA)
def sdpa_masks_repeat(plain, *given, **named):
    """The fused kernel starts its random numbers anew at each call, as in a captured graph."""
    if not named.get("dropout_p"):
        return plain(*given, **named)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return plain(*given, **named)


@fault("nondeterminism", "bf16")
@replaces(functional, SDPA, is_unstrict)
def sdpa_reads_uninitialised_memory(plain, *given, **named):
    """Fused attention adds memory that was never written to its output."""
    found, random = plain(*given, **named), torch.Generator()
    random.seed()
    return found + (0.05 * torch.randn(found.shape, generator=random)).to(found.dtype)
