"""Makers of the fifth set's entries."""

from __future__ import annotations

from bench.faults.catalogue import Entry

__all__ = ["files", "inside", "two"]

_PACKAGE = "held_out_fifth"


def inside(family: str, expected: str, module: str, names: str, workload: str = "cls") -> list[Entry]:
    """Return entries whose fault is applied in the training process."""
    return [
        Entry(name.replace("_", "-"), family, expected, inject=f"{_PACKAGE}.{module}.{name}", workload=workload)
        for name in names.split()
    ]


def files(family: str, expected: str, module: str, names: str) -> list[Entry]:
    """Return entries whose fault is applied to a copy of the dataset."""
    return [
        Entry(name.replace("_", "-"), family, expected, alter=f"{_PACKAGE}.{module}.{name}") for name in names.split()
    ]


def two(name: str, expected: str, *inject: str, alter: str = "", workload: str = "cls") -> Entry:
    """Return an entry with two independent faults."""
    names = ",".join(f"{_PACKAGE}.{item}" for item in inject)
    return Entry(name, "two", expected, names, f"{_PACKAGE}.{alter}" if alter else "", workload=workload)
