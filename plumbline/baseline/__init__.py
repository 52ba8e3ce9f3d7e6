"""Baselines: the approved records of a RunSpec on a platform."""

from __future__ import annotations

from plumbline.baseline.book import Accepted, Baseline, BaselineBook, DecisionNote

__all__ = ["Accepted", "Baseline", "BaselineBook", "DecisionNote"]
