"""Table of the clouds' GPU machines, and the names that an `accelerator` accepts."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

from pydantic import Field

from plumbline.schema.base import Model
from plumbline.schema.suite_file import with_tuples


class Machine(Model):
    """One type of machine with an image that trains."""

    cloud: Literal["aws", "azure", "gcp"]
    type: str = Field(min_length=1)
    gpu: str = Field(min_length=1)
    """The GPU's name, as its driver reports it."""
    image: str = Field(min_length=1)
    """Exact image, with its date."""
    driver: str = Field(pattern=r"^\d+(\.\d+)*$")
    """The image's NVIDIA driver, or at least its branch."""
    python: str = Field(pattern=r"^3\.\d+$")
    cuda: str = Field(pattern=r"^\d+$")
    """Major version of the CUDA runtime that trains there."""
    price_per_hour: float = Field(gt=0)
    """USD."""
    source: str = Field(min_length=1)
    """Origin of these values, and which of them are not verified."""


class StorePrice(Model):
    """Prices of one cloud's object store, in USD per GiB."""

    month: float = Field(ge=0)
    """Storage for a month."""
    egress: float = Field(ge=0)
    """Transfer out of the cloud."""


class MachineTable(Model):
    """All machines, the families of GPU names, and the stores' prices by scheme."""

    families: dict[str, tuple[str, ...]]
    stores: dict[str, StorePrice]
    machines: tuple[Machine, ...]


@cache
def machine_table() -> MachineTable:
    """Return the table of this installation."""
    text = resources.files(__package__).joinpath("machines.toml").read_text(encoding="utf-8")
    import tomllib  # of Python 3.11

    return MachineTable.model_validate(with_tuples(tomllib.loads(text)))


def accelerator_names(accelerator: str) -> tuple[str, ...]:
    """Return the names of GPUs that `accelerator` accepts: its own, or those of its family."""
    return machine_table().families.get(accelerator, (accelerator,))


_CLOUDS = {"s3": "aws", "az": "azure", "gs": "gcp"}


def machine_of(store_scheme: str, accelerator: str) -> Machine | None:
    """Return the cheapest machine with this accelerator in the cloud of a store; `None` if the table has none."""
    names, cloud = accelerator_names(accelerator), _CLOUDS.get(store_scheme)
    fitting = [row for row in machine_table().machines if row.cloud == cloud and row.gpu in names]
    return min(fitting, key=lambda row: row.price_per_hour, default=None)


def accelerator_text(accelerator: str, names: tuple[str, ...]) -> str:
    """Return `accelerator` for a message, with the names that it accepts."""
    return accelerator if names == (accelerator,) else f"{accelerator} ({' or '.join(names)})"
