"""Rounds: who trains what. Modules that load numpy and the judge are imported by their own names."""

from plumbline.rounds.plan import Assignment, Round, check_round_id, new_round_id

__all__ = ["Assignment", "Round", "check_round_id", "new_round_id"]
