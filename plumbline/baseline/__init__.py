"""Baselines: the approved records of a RunSpec on a platform."""

from __future__ import annotations

from plumbline.baseline.book import BaselineBook
from plumbline.baseline.schema import Accepted, Baseline, DecisionNote

__all__ = ["Accepted", "Baseline", "BaselineBook", "DecisionNote"]
