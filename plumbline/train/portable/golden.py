"""Expected digests of the shipped tiny training, per set of formulas."""

from __future__ import annotations

from importlib.resources import files

from pydantic import Field

from plumbline.schema.base import Model, read_model
from plumbline.schema.evidence import PortableStep

__all__ = ["Formulas", "Golden", "first_difference", "read_golden"]


class Formulas(Model):
    """Digests of one set of formulas, with the library versions that agree."""

    transformers: tuple[str, ...]
    torch: tuple[str, ...]
    steps: dict[str, tuple[PortableStep, ...]]
    """Expected steps by task."""


class Golden(Model):
    """All known sets of formulas, the newest last."""

    formulas: tuple[Formulas, ...] = Field(min_length=1)


def read_golden() -> Golden:
    """Return the golden digests shipped with this release."""
    return read_model(
        Golden, files("plumbline.train.portable").joinpath("golden.json").read_bytes(), where="golden.json"
    )


def first_difference(right: tuple[PortableStep, ...], found: tuple[PortableStep, ...]) -> str:
    """Return the first place where `found` differs from the expected digests, or ""."""
    for expected, step in zip(right, found, strict=False):
        for kind in ("outputs", "loss", "gradients", "weights"):
            wanted, given = getattr(expected, kind), getattr(step, kind)
            if wanted is None or wanted != given:
                if kind == "loss":
                    return f"the loss of step {expected.step}"
                names = dict(given)
                differing = [name for name, digest in wanted if digest is None or names.get(name) != digest]
                return f"{kind} of step {expected.step}: {differing[0] if differing else 'more names than expected'}"
            if kind != "loss" and any(digest is None for _, digest in wanted):
                return f"{kind} of step {expected.step}: not finite"
    return "" if len(right) == len(found) else "the number of steps"
