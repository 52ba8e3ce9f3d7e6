"""A subset of the fault benchmark over all families: nothing missed, nothing misnamed, no control flagged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.bench import run_all
from tests.faults.catalogue import CONTROLS, FAULTS

SEED = 3
_SUBSET = frozenset({
    "one-word", "one-label", "shards-reordered", "order-seed", "doubled-row", "lower-case", "encoder-bug",
    "other-isa-weights", "missing-layer", "other-seed", "dropout-on", "tf32", "softmax-autocast", "tanh-gelu",
    "mask-ignored", "label-smoothing", "accumulation-sum", "clipping-off", "epsilon", "stale-momentum",
    "schedule-before-optimizer", "last-batch-dropped", "racing-reduction",
    "labels-and-gelu", "order-and-smoothing", "operator-from-step-four",
})  # fmt: skip
_CONTROLS = frozenset({"other-hostname", "two-threads", "fused-optimizer", "avx2", "loader-workers"})


@pytest.mark.slow
def test_faults_of_every_family_are_named_and_controls_pass(tmp_path: Path) -> None:
    chosen = [one for one in FAULTS if one.name in _SUBSET] + [one for one in CONTROLS if one.name in _CONTROLS]
    assert {one.family for one in chosen} == {one.family for one in (*FAULTS, *CONTROLS)}
    assert len(chosen) == len(_SUBSET) + len(_CONTROLS)
    results = run_all(tmp_path, [(one, SEED) for one in chosen])
    missed = [one for one in results if not one.right]
    assert not missed
    faults = [one for one in results if one.expected]
    assert sum(set(one.sure) == {"confirmed"} for one in faults) >= 0.8 * len(faults)


def test_the_catalogue_is_as_large_as_promised() -> None:
    assert len(FAULTS) >= 45
    assert len(CONTROLS) >= 12
    names = [one.name for one in (*FAULTS, *CONTROLS)]
    assert len(set(names)) == len(names)
    assert all(one.words for one in (*FAULTS, *CONTROLS))
