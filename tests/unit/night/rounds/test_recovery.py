"""Steps for a round whose process may be gone."""

from __future__ import annotations

import pytest

from plumbline.night.rounds.recovery import Step, next_step


@pytest.mark.parametrize(
    ("state", "seconds", "crashes", "attended", "step"),
    [
        # The worker's second report of the crash may still come.
        ("CRASHED", 19, 1, True, None),
        ("CRASHED", 20, 1, True, Step.RESUME),
        ("CRASHED", 80_000, 1, False, Step.RESUME),
        ("CRASHED", 20, 4, True, Step.RESUME),
        ("CRASHED", 20, 5, True, Step.END),
        ("RUNNING", 119, 0, True, None),
        ("RUNNING", 120, 0, True, Step.CRASH),
        ("PENDING", 299, 0, True, None),
        ("PENDING", 300, 0, True, Step.CRASH),
        ("InfrastructurePending", 80_000, 0, True, None),
        # A resumed round waits for a worker, and a new one for its time.
        ("SCHEDULED", 80_000, 1, True, None),
        ("SCHEDULED", 899, 1, False, None),
        ("SCHEDULED", 900, 1, False, Step.END),
        ("SCHEDULED", 80_000, 0, False, None),
        ("CANCELLING", 80_000, 0, True, None),
        *((state, 80_000, 5, False, None) for state in ("COMPLETED", "FAILED", "CANCELLED", "PAUSED")),
    ],
)
def test_a_round_is_moved_on_only_when_nothing_else_will(
    state: str, seconds: float, crashes: int, attended: bool, step: Step | None
) -> None:
    assert next_step(state, seconds, crashes, is_attended=attended) == step
