"""Order and evidence of a night's interleaved A/B."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Annotated

from pydantic import Field

from plumbline.digest import digest_json
from plumbline.schema.base import Label, Model, Number, Sha256

MAX_BLOCKS = 50
_BLOCK = 4
_HALVES = tuple(combinations(range(_BLOCK), _BLOCK // 2))
# They are arguments of an installer: none may look like an option, a path or an address.
PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=200)]
PackageVersion = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.!+_-]*)?$", max_length=200)]


class AbOrder(Model):
    """Tonight's environment against the baseline's, in blocks of four runs on one machine."""

    packages: tuple[tuple[PackageName, PackageVersion], ...] = Field(min_length=1, max_length=10_000, fail_fast=True)
    """Differing packages with the baseline's version; empty if the baseline lacked the package."""
    num_blocks: int = Field(ge=1, le=MAX_BLOCKS)
    seconds: float = Field(gt=0, le=1e9)
    """Maximum seconds: no block is started that would probably end later."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the order of the runs within each block."""

    def block(self, number: int) -> tuple[bool, ...]:
        """Return which runs of a block use tonight's environment: two of four, drawn by the seed.

        The drawn order is what the exact test assumes: no trend or rhythm of the machine can be in its favour.
        """
        drawn = hashlib.sha256(f"{self.seed}/{number}".encode()).digest()
        chosen = _HALVES[int.from_bytes(drawn[:8]) % len(_HALVES)]
        return tuple(place in chosen for place in range(_BLOCK))

    @property
    def digest(self) -> str:
        """Return the identity of the order, which the evidence repeats."""
        return digest_json(self.to_json())


class AbRun(Model):
    """One run of a block."""

    block: int = Field(ge=0, lt=MAX_BLOCKS)
    is_tonight: bool
    """Whether the run used tonight's environment, not the baseline's."""
    metrics: dict[Label, Number | None] = Field(default={}, max_length=64)


class AbEvidence(Model):
    """All runs in the order of execution, on the machine of the record's fingerprint."""

    order_sha256: Sha256
    runs: tuple[AbRun, ...] = Field(default=(), max_length=MAX_BLOCKS * _BLOCK, fail_fast=True)
    unavailable: str = Field(default="", max_length=2000)
    """Reason why the baseline's environment could not be built or could not train."""
