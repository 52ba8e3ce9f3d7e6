"""Makers of the thirteenth set's entries."""

from __future__ import annotations

from functools import partial

from bench.faults.held_out_seventh import entries
from bench.faults.held_out_seventh.entries import AVX2, NOISE

__all__ = ["AVX2", "NOISE", "files", "inside", "second_process"]

_PACKAGE = "held_out_thirteenth"
files = partial(entries.files, package=_PACKAGE)
inside = partial(entries.inside, package=_PACKAGE)
second_process = partial(entries.second_process, package=_PACKAGE)
