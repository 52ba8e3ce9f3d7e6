"""Rounds: who trains what, what came in, and how the outcome is told."""

from plumbline.rounds.baselines import read_baselines
from plumbline.rounds.harvest import Absence, Harvest, harvest
from plumbline.rounds.judging import BASELINE_CHECK, Baselines, judge_harvest, reruns_needed
from plumbline.rounds.outcome import absent_result, headline, join, sum_up
from plumbline.rounds.plan import Assignment, Round, new_round_id
from plumbline.rounds.reporting import draw_plots, write_report

__all__ = [
    "BASELINE_CHECK",
    "Absence",
    "Assignment",
    "Baselines",
    "Harvest",
    "Round",
    "absent_result",
    "draw_plots",
    "harvest",
    "headline",
    "join",
    "judge_harvest",
    "new_round_id",
    "read_baselines",
    "reruns_needed",
    "sum_up",
    "write_report",
]
