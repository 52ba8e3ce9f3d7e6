"""Rounds: planning, gathering, judging and reporting of one execution of a suite."""

from plumbline.night.rounds.plan import Assignment as Assignment
from plumbline.night.rounds.plan import Round as Round
from plumbline.night.rounds.plan import check_round_id as check_round_id
from plumbline.night.rounds.plan import new_round_id as new_round_id
from plumbline.night.rounds.plan import round_of_run as round_of_run
