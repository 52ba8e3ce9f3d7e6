"""The floor plan in CONTRIBUTING.md is that of the imports, and each wing says what it is."""

from __future__ import annotations

import re

import pytest

from infra.docs import floor_plan

WINGS = sorted(path.parent for path in floor_plan.ROOT.glob("plumbline/*/__init__.py"))


def test_the_floor_plan_is_that_of_the_imports_and_has_a_dozen_boxes() -> None:
    guide = floor_plan.GUIDE.read_text(encoding="utf-8")
    assert floor_plan.with_drawing(guide) == guide, "stale: python infra/docs/floor_plan.py --write"
    boxes = re.findall(r"^    \w+\[\"<b>.+</b><br>.+\"\]$", floor_plan.drawing(), re.MULTILINE)
    assert 10 <= len(boxes) <= 12


def test_a_circle_of_wings_is_refused() -> None:
    wings = {"night": frozenset({"judge"}), "judge": frozenset({"records"}), "records": frozenset({"night"})}
    with pytest.raises(ValueError, match="circle"):
        floor_plan.reach(wings, "night")


@pytest.mark.parametrize("wing", WINGS, ids=lambda wing: wing.name)
def test_a_wing_says_what_comes_in_what_goes_out_and_what_it_must_never_do(wing) -> None:
    text = (wing / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {wing.name}: ")
    assert len(text.splitlines()) <= 20
    assert [part for part in ("**In:** ", "**Out:** ", "**Never:** ") if part not in text] == []
    gone = [name for name in re.findall(r"`([\w/]+\.(?:py|toml|j2)|[\w/]+/)`", text) if not is_there(wing, name)]
    assert gone == [], f"{wing.name}/README.md names files that do not exist"


def is_there(wing, name: str) -> bool:
    """Return whether a README's name is a file of its wing, of the product or of the repository."""
    return any((folder / name).exists() for folder in (wing, *wing.parents[:2])) or bool(list(wing.rglob(name)))
