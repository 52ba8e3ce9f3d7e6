"""Rounds: who trains what, what came in, and how the outcome is told."""

from plumbline.rounds.harvest import Absence, Harvest, harvest
from plumbline.rounds.judging import Baselines, judge_harvest
from plumbline.rounds.order import TrainingOrder, read_order
from plumbline.rounds.outcome import absent_result, headline, join, sum_up
from plumbline.rounds.plan import Assignment, Round, new_round_id

__all__ = [
    "Absence",
    "Assignment",
    "Baselines",
    "Harvest",
    "Round",
    "TrainingOrder",
    "absent_result",
    "harvest",
    "headline",
    "join",
    "judge_harvest",
    "new_round_id",
    "read_order",
    "sum_up",
]
