"""The union of what two sources of one round gave."""

from __future__ import annotations

from plumbline.night.rounds.gathered import Absence, GatheredRecords
from plumbline.night.rounds.plan import Assignment
from tests.unit.judge.conftest import make_record

LEFT, RIGHT = Assignment("aws", "w", "main"), Assignment("azure", "w", "main")


def test_the_union_of_two_sources_has_all_of_both_and_the_second_ones_word() -> None:
    first = GatheredRecords({LEFT: make_record()}, {RIGHT: Absence("no worker")}, {LEFT: ("a",), RIGHT: ("b",)})
    second = GatheredRecords({RIGHT: make_record()}, {LEFT: Absence("late")}, {RIGHT: ("c",)})
    both = first.plus(second)
    assert both.records == first.records | second.records
    assert both.absent == {RIGHT: Absence("no worker"), LEFT: Absence("late")}
    assert both.notes == {LEFT: ("a",), RIGHT: ("c",)}
    assert both.of("w") == {"aws": first.records[LEFT], "azure": second.records[RIGHT]}
    assert both.of("w", "rerun") == both.of("other") == {}
