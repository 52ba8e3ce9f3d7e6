"""The threat model's and the security page's claims: each names a test that exists."""

from __future__ import annotations

import re

import pytest

from tests.unit.infra.documented_commands import ROOT

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
THREATS, SECURITY = ((ROOT / page).read_text("utf-8") for page in ("docs/THREATS.md", "SECURITY.md"))
_, TRIES = THREATS.split("## What each can do\n")
ROWS = [line for line in TRIES.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
CLAIMS = [line for line in SECURITY.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_threat_model_names_its_test(row: str) -> None:
    _, who, tries, happens, shown, _ = (cell.strip() for cell in row.split("|"))
    assert who
    assert tries
    # An attack that succeeds by design may have no test: it is stated so that nobody relies on a boundary there.
    assert TEST.search(shown) or (shown == "\N{EN DASH}" and "**succeeds**" in happens), row


@pytest.mark.parametrize("claim", CLAIMS)
def test_each_claim_of_the_security_page_names_its_test_and_is_in_the_threat_model(claim: str) -> None:
    named = TEST.findall(claim)
    assert named, claim
    assert set(named) <= set(TEST.findall(THREATS)), claim


def test_the_named_tests_exist() -> None:
    assert len(ROWS) > 15
    assert len(CLAIMS) > 5
    missing = [
        f"{path}::{name}"
        for path, name in TEST.findall(THREATS + SECURITY)
        if not (ROOT / path).is_file() or f"\ndef {name}(" not in (ROOT / path).read_text("utf-8")
    ]
    assert not missing
    # Tests are named in this form alone.
    assert len(re.findall(r"tests/[\w/]+\.py", THREATS + SECURITY)) == len(TEST.findall(THREATS + SECURITY))
