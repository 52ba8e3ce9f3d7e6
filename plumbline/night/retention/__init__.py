"""Retention: choose old rounds of a suite, and delete them."""

from plumbline.night.retention.choice import Choice as Choice
from plumbline.night.retention.choice import StoredRound as StoredRound
from plumbline.night.retention.choice import choose as choose
from plumbline.night.retention.sweep import Sweep as Sweep
from plumbline.night.retention.sweep import plan_sweep as plan_sweep
from plumbline.night.retention.sweep import remove as remove
