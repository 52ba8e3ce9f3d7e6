"""Retention: which rounds of a suite may go, and their removal from the central store."""

from __future__ import annotations

from plumbline.retention.choice import Choice, StoredRound, choose
from plumbline.retention.sweep import Sweep, plan_sweep, remove

__all__ = ["Choice", "StoredRound", "Sweep", "choose", "plan_sweep", "remove"]
