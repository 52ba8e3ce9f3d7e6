"""Rounds: who trains what. What comes after the trainings loads numpy and the judge, and is imported by its module."""

from plumbline.rounds.plan import Assignment, Round, new_round_id

__all__ = ["Assignment", "Round", "new_round_id"]
