"""Trials: questions to a machine that trains, and their results.

A trial asks: with just these changes applied to your current environment, does this part of the training stay the same?
Questions and answers are JSON, so a trial may run here, or on any worker that holds the current environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from pydantic import Field

from plumbline.schema.base import Model, Name, Sha256
from plumbline.schema.verdict import Judgement
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.locks.model import Pin

TrialPart = Literal["environment", "releases", "reference", "inputs", "numerics", "speed"]
"""`environment`: can it be built? `releases`: which releases lie between both pins of a change? `reference`: the
current environment alone. The others compare a part with it."""

TrialOutcome = Literal["same", "drift", "cannot-install", "cannot-train", "lost"]
"""`lost`: the machine failed, and nothing is known of the changes."""

Memory = Literal["host memory", "device memory"]
Measure = Literal["throughput", "host memory", "device memory"]
"""What a pair of trainings compares."""

_MANY = 10_000


class Trial(Model):
    """One trial: what to train, with which changes."""

    name: Name
    changes: tuple[PackageChange, ...] = Field(default=(), max_length=_MANY)
    part: TrialPart
    steps: int | None = Field(default=None, ge=1)
    """Train only the first steps of the probe: those that showed the drift. `None`: the whole part."""
    learn: bool = True
    """Of `numerics`: whether the learn part is trained."""
    probe: bool = True
    """Of `numerics`: whether the probe is trained."""
    pairs: int = Field(default=3, ge=1, le=100)
    """Of `speed`: how many pairs of fresh processes."""
    pairs_before: int = Field(default=0, ge=0, le=100)
    """Of `speed`: how many pairs were trained before, so that the order goes on alternating."""


class Failure(Model):
    """Reason why changes cannot be installed or cannot train.

    Code does not read `message`.
    """

    stage: Literal["install", "resolve", "import", "training"]
    package: str = ""
    """The package that the installer or the metadata names."""
    library: str = Field(default="", max_length=200)
    """Of `import`: the library whose code failed."""
    exception: str = Field(default="", max_length=200)
    """Of `import`: the exception's type."""
    message: str = Field(default="", max_length=4000)


class Package(Model):
    """Metadata of one changed package: links and needs."""

    package: str
    links: dict[str, str] = Field(default={}, max_length=200)
    needs: tuple[str, ...] = Field(default=(), max_length=_MANY)
    """Other changes without which this one breaks a requirement: they are tried together."""
    has_startup_hook: bool = False
    """Whether it runs code when Python starts, imported or not."""


class TrialResult(Model):
    """Result of one trial."""

    trial: Name
    outcome: TrialOutcome
    worker: str = ""
    judgement: Judgement | None = None
    """Of `inputs` and `numerics`."""
    has_equal_bits: bool = False
    """Of `numerics`: every bit of the probe is equal."""
    log_ratios: tuple[float, ...] = Field(default=(), max_length=1000)
    """Of `speed`: ln(changed / current) of the throughput, one value a pair."""
    memory_ratios: dict[Memory, tuple[float, ...]] = {}
    """Of `speed`: ln(changed / current) of the peak memory, one value a pair; empty where it was not measured."""
    failures: tuple[Failure, ...] = Field(default=(), max_length=_MANY)
    imported: tuple[str, ...] | None = Field(default=None, max_length=_MANY)
    """Packages that the trainer loaded code from, under these changes; `None` where it loaded nothing."""
    packages: tuple[Package, ...] = Field(default=(), max_length=_MANY)
    """Of `environment`."""
    releases: tuple[Pin, ...] = Field(default=(), max_length=_MANY)
    """Of `releases`: from the current pin to the candidate's, both left out."""
    environment_sha256: Sha256 | None = None
    """Identity of the environment that was used."""
    seconds: float = Field(default=0.0, ge=0)

    def ratios(self, measure: Measure) -> tuple[float, ...]:
        """Return a value for each pair; below 0 where the changes are worse."""
        if measure == "throughput":
            return self.log_ratios
        return tuple(-ratio for ratio in self.memory_ratios.get(measure, ()))


class Trials(Protocol):
    """Runner of trials, here or on the free workers."""

    @property
    def num_parallel(self) -> int:
        """Return the number of trials that run at once."""

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Yield one result per trial, in the order of completion."""
