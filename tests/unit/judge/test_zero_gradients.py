"""A gradient that is zero by mathematics says nothing between kernels, and hides nothing beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from plumbline.digest import digest_json
from plumbline.judge import compare
from plumbline.records import LoadedRecord

from .conftest import make_record, other_kernel
from .kept_verdicts import kept
from .made_records import codes

compare = kept(compare)


def zero_gradient(size: float, own: float, **changes: Any) -> LoadedRecord:
    """Return a record whose gradient of `embed.weight` is noise of `size`."""
    made = make_record(**changes)
    probe = made.record.evidence.probe
    assert probe is not None
    assert probe.envelope is not None
    taps, errors = [tap.to_json() for tap in probe.taps], list(probe.envelope.fp64_errors)
    for place, tap in enumerate(taps):
        if (tap["stage"], tap["name"]) == ("gradient", "embed.weight"):
            made.arrays["sketches"]["sketch"][place] = np.random.default_rng(place).normal(size=64) * size / 8
            tap |= {"norm": size, "sha256": digest_json([size, place])}
            errors[place] = own
    envelope = probe.envelope.replace(fp64_errors=errors)
    changed = probe.replace(taps=taps, envelope=envelope.to_json())
    evidence = made.record.evidence.replace(probe=changed.to_json())
    return LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)


def test_a_gradient_that_is_zero_by_construction_says_nothing_between_kernels() -> None:
    reference = zero_gradient(1e-12, 1.0)
    assert compare(reference, zero_gradient(1e-10, 1.0, fingerprint=other_kernel())).verdict == "pass"


@pytest.mark.parametrize("side", [0, 1])
def test_a_gradient_that_is_real_in_one_of_both_runs_still_counts(side: int) -> None:
    owns = [2e-7, 1.0] if side else [1.0, 2e-7]
    candidate = zero_gradient(1e-3, owns[1], fingerprint=other_kernel())
    assert codes(compare(zero_gradient(1e-5, owns[0]), candidate)) == ["gradient"]


def test_a_fault_beside_a_gradient_of_zero_is_found() -> None:
    candidate = zero_gradient(1e-10, 1.0, fingerprint=other_kernel(), gradient_factor=1.25)
    assert codes(compare(zero_gradient(1e-12, 1.0), candidate)) == ["gradient"]


def test_a_gradient_of_zero_that_is_not_finite_never_passes() -> None:
    candidate = zero_gradient(1e-10, 1.0, fingerprint=other_kernel())
    candidate.arrays["sketches"]["sketch"][:] = math.nan
    assert compare(zero_gradient(1e-12, 1.0), candidate).verdict == "drift"
