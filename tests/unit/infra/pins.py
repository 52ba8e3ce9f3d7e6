"""Pins of the lock files by name."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]


def requirements(name):
    """Return a lock file's requirements by name, without hashes."""
    lines = (ROOT / "locks" / f"{name}.txt").read_text().splitlines()
    wanted = [Requirement(line.removesuffix("\\")) for line in lines if line[:1].isalnum()]
    return {canonicalize_name(item.name): item for item in wanted}


def pins(name):
    return {key: str(item.specifier).removeprefix("==") for key, item in requirements(name).items()}
