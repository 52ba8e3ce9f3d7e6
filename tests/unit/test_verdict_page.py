"""Pages that explain a verdict name the verdict that the judge gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.schema.errors import ExitCode

from .judge.conftest import set_step
from .judge.made_records import probe, whole

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| (\d) \| (.*) \|$", re.MULTILINE)
WINGS = ("plumbline/judge/README.md", "plumbline/night/README.md")


def without_a_norm(content: dict[str, Any]) -> None:
    set_step(probe(content), 3, {"gradient_norm": None})


@pytest.fixture(scope="module")
def verdict() -> str:
    """Return the verdict of a record with missing evidence."""
    return compare(whole(), whole(without_a_norm)).verdict


def test_the_readme_says_what_missing_evidence_is(verdict: str) -> None:
    rows = ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [name for name, _, text in rows if "missing evidence" in text] == [verdict]
    assert {name: int(code) for name, code, _ in rows} == {
        name: int(ExitCode[name.upper()]) for name in ("pass", "drift", "inconclusive", "invalid")
    }


@pytest.mark.parametrize("page", WINGS)
def test_the_wings_say_what_missing_evidence_is(page: str, verdict: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.findall(r"missing evidence is `(\w+)`", text) == [verdict]
