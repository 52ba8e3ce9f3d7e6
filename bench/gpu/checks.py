"""The checks that need a GPU, by name."""

from __future__ import annotations

from collections.abc import Callable

from bench.gpu import equality, rates
from bench.gpu.place import Found, Place

CHECKS: dict[str, Callable[[Place], Found]] = {
    "dropout": equality.dropout,
    "golden": equality.golden,
    "records": equality.records,
    "parts": equality.parts,
    "production": equality.production,
    "resume": equality.resume,
    "processes": equality.processes,
    "throughput-base": lambda place: rates.throughput(place, "base", 64, 128),
    "throughput-large": lambda place: rates.throughput(place, "large", 16, 512),
    "choices": lambda place: rates.choices(place, "base", 32, 128, *rates.CHOICES),
    "mfu-large": lambda place: rates.choices(place, "large", 32, 512, "compiled", "plain"),
    "probe-base": lambda place: rates.probe(place, "base", 128, 60),
    "probe-base-512": lambda place: rates.probe(place, "base", 512, 240),
    "probe-large": lambda place: rates.probe(place, "large", 128, 240),
    "probe-large-512": lambda place: rates.probe(place, "large", 512, 400),
}
"""Checks by name: equality first, then rates, which want the machine for themselves."""
BRIEF = ("golden", "dropout", "parts", "choices", "throughput-base", "mfu-large", "throughput-large")
"""Checks of one loan of eight minutes: what is open first, and last what may be cut."""
