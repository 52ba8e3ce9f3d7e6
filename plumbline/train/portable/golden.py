"""Expected digests of the shipped tiny training, per set of formulas."""

from __future__ import annotations

import re
from importlib.resources import files

from pydantic import Field

from plumbline.schema.base import Model, read_model
from plumbline.schema.evidence import PortableStep


class Versions(Model):
    """Range of a library's minor versions that have the same formulas, both ends included."""

    first: str
    last: str

    def include(self, version: str) -> bool:
        """Return whether a version, such as `2.6.0+cu124`, is in the range."""
        return _minor(self.first) <= _minor(version) <= _minor(self.last)


def _minor(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else ()


class Formulas(Model):
    """Digests of one set of formulas, with the library versions that have it."""

    transformers: Versions
    torch: Versions
    steps: dict[str, tuple[PortableStep, ...]]
    """Expected steps by task."""

    def belong_to(self, torch: str, transformers: str) -> bool:
        """Return whether a stack of these versions must have these digests."""
        return self.torch.include(torch) and self.transformers.include(transformers)

    def __str__(self) -> str:
        ranges = (f"{name} {range_.first} to {range_.last}" for name, range_ in self._ranges())
        return ", ".join(ranges)

    def _ranges(self) -> tuple[tuple[str, Versions], ...]:
        return ("torch", self.torch), ("transformers", self.transformers)


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
                differing = [name for name, digest in wanted or () if digest is None or names.get(name) != digest]
                # A module that only some versions call, such as a dropout of rate zero, changes no output around it.
                if not differing and kind == "outputs":
                    continue
                return f"{kind} of step {expected.step}: {differing[0] if differing else 'more names than expected'}"
            if kind != "loss" and any(digest is None for _, digest in wanted):
                return f"{kind} of step {expected.step}: not finite"
    return "" if len(right) == len(found) else "the number of steps"
