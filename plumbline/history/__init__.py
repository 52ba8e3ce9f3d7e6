"""Decision engine over a platform's nights.

Detectors, limits, experiments' tests and a simulation. Pure.
"""

from __future__ import annotations

from plumbline.history.allowed import Allowed, allowed_for
from plumbline.history.decision import Answers, Decision, Past
from plumbline.history.series_state import decide

__all__ = ["Allowed", "Answers", "Decision", "Past", "allowed_for", "decide"]
