"""Baselines: the approved records of a RunSpec on a platform."""

from plumbline.baseline.book import Accepted as Accepted
from plumbline.baseline.book import Baseline as Baseline
from plumbline.baseline.book import BaselineBook as BaselineBook
from plumbline.baseline.book import DecisionNote as DecisionNote
