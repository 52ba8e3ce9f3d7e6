"""Judgement of a platform's nights: decision engine, detectors, limits, simulation. Pure."""

from __future__ import annotations

from plumbline.history.decision import Answers, Decision, Past, decide
from plumbline.history.limits import Allowed, allowed_for

__all__ = ["Allowed", "Answers", "Decision", "Past", "allowed_for", "decide"]
