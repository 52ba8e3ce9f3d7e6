"""Retention: which rounds of a suite may go, and their removal from the central store."""

from plumbline.retention.choice import Choice as Choice
from plumbline.retention.choice import StoredRound as StoredRound
from plumbline.retention.choice import choose as choose
from plumbline.retention.sweep import Sweep as Sweep
from plumbline.retention.sweep import plan_sweep as plan_sweep
from plumbline.retention.sweep import remove as remove
