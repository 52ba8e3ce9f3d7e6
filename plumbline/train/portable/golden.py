"""The right digests of the shipped tiny training, for each set of formulas that was checked before a release."""

from __future__ import annotations

from importlib.resources import files

from pydantic import Field

from plumbline.schema.base import Model, read_model
from plumbline.schema.evidence import PortableStep

__all__ = ["Formulas", "Golden", "first_difference", "read_golden"]


class Formulas(Model):
    """A set of formulas: the versions of transformers and torch that were seen to agree on it, and its digests."""

    transformers: tuple[str, ...]
    torch: tuple[str, ...]
    steps: dict[str, tuple[PortableStep, ...]]
    """By task."""


class Golden(Model):
    """All known sets of formulas, the newest last."""

    formulas: tuple[Formulas, ...] = Field(min_length=1)


def read_golden() -> Golden:
    """Return the golden digests shipped with this release."""
    return read_model(
        Golden, files("plumbline.train.portable").joinpath("golden.json").read_bytes(), where="golden.json"
    )


def first_difference(right: tuple[PortableStep, ...], found: tuple[PortableStep, ...]) -> str:
    """Return where `found` first leaves the right digests, in the order of computation; nothing if nowhere."""
    for ours, theirs in zip(right, found, strict=False):
        for kind in ("outputs", "loss", "gradients", "weights"):
            one, other = getattr(ours, kind), getattr(theirs, kind)
            if one is None or one != other:
                if kind == "loss":
                    return f"the loss of step {ours.step}"
                names = dict(other)
                differing = [name for name, digest in one if digest is None or names.get(name) != digest]
                return f"{kind} of step {ours.step}: {differing[0] if differing else 'other names'}"
            if kind != "loss" and any(digest is None for _, digest in one):
                return f"{kind} of step {ours.step}: not finite"
    return "" if len(right) == len(found) else "the number of steps"
