"""Judge a platform's series of nights: one decision engine, its detectors, its limits and its simulation. Pure."""

from __future__ import annotations

from plumbline.history.engine import Answers, Decision, Past, decide
from plumbline.history.limits import Allowed, allowed_for

__all__ = ["Allowed", "Answers", "Decision", "Past", "allowed_for", "decide"]
