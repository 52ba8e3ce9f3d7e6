"""Distance of a native tensor from its definition in fp64, or why there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from plumbline.schema.proof import ProofError
from plumbline.schema.stage import STAGES, Stage
from plumbline.train.digests import finite, read_losses
from plumbline.train.failure import described, is_out_of_memory
from plumbline.train.watch.summaries import aside

NO_FORM = -1.0
"""Error of a tensor whose definition is not finite in fp64, such as a mask that becomes minus infinity there."""


@dataclass(frozen=True, slots=True)
class Found:
    """Distance of a tensor from its fp64 definition, in roundings of `dtype`."""

    stage: Stage
    name: str
    kind: str
    dtype: torch.dtype
    terms: int
    error: torch.Tensor


def read(found: list[Found]) -> tuple[list[ProofError], dict[str, str]]:
    """Return errors by stage, and tensors without a finite definition; synchronises the device."""
    errors = read_losses([each.error for each in found])
    pairs = list(zip(found, errors, strict=True))
    listed = [
        ProofError(
            stage=each.stage, name=each.name, kind=each.kind, dtype=str(each.dtype).removeprefix("torch."),
            terms=each.terms, error=finite(error),
        )
        for each, error in pairs if error != NO_FORM
    ]  # fmt: skip
    listed.sort(key=lambda each: STAGES.index(each.stage))
    return listed, {each.name: "not finite in fp64, or not twice the same" for each, error in pairs if error == NO_FORM}


class Lost(dict[str, str]):
    """Why tensors are not proven, by name."""

    lacks_memory = False

    def text(self) -> str:
        """Return all names and reasons, as a proof holds them."""
        return "; ".join(f"{name}: {reason}" for name, reason in self.items())[:1000]

    @contextlib.contextmanager
    def guarded(self, name: str) -> Iterator[None]:
        """List an error of a check as lost; no check ends a training."""
        try:
            with aside():
                yield
        except Exception as error:  # noqa: BLE001 - such as a module's own assertion of a format
            self.lacks_memory |= is_out_of_memory(error)
            self.setdefault(name, described(error))


def changed_state(name: str) -> ProofError:
    """Return the error of a state that changed between an update and the next step."""
    return ProofError(stage="state", name=name, kind="", dtype="", error=None)


def unit_of(dtype: torch.dtype) -> float:
    """Return the largest relative error of one rounding to `dtype`."""
    return float(torch.finfo(dtype).eps) / 2


def size_of(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor's norm in fp64."""
    size: torch.Tensor = torch.linalg.vector_norm(value.detach().double())
    return size


def distance(native: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the norm of a difference in fp64."""
    return size_of(native.detach().double() - exact.detach().double())


def moved_size(exact: torch.Tensor, dtype: torch.dtype, *moved: torch.Tensor) -> torch.Tensor:
    """Return a definition's size, or how many roundings move it in any trial if more."""
    return torch.stack([size_of(exact), *(distance(each, exact) / unit_of(dtype) for each in moved)]).amax()


def error_of(native: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance from a definition relative to `size`, in roundings of `dtype`."""
    return distance(native, exact) / size.clamp_min(1e-300) / unit_of(dtype)
