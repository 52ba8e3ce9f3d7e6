"""Rounds: planning, gathering, judging and reporting of one execution of a suite."""

from plumbline.rounds.plan import Assignment, Round, check_round_id, new_round_id

__all__ = ["Assignment", "Round", "check_round_id", "new_round_id"]
