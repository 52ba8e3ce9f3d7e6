"""Recipients of alerts: in each shipped and documented suite some recipient gets every round that does not pass."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from plumbline.night.doctor import examine_recipients
from plumbline.schema.suite import read_suite

ROOT = Path(__file__).resolve().parents[3]


def unheard(suite):
    return [result.what for result in examine_recipients(suite) if not result.well]


@pytest.mark.parametrize("path", sorted((ROOT / "deployments/suites").glob("*.toml")), ids=lambda path: path.stem)
def test_no_shipped_suite_lets_a_round_fail_in_silence(path):
    suite = read_suite(path)
    assert unheard(suite) == []
    assert suite.alerts or suite.schedule is None


@pytest.mark.parametrize("name", ["how-to/alerts.md"])
def test_no_documented_recipient_misses_a_round_that_does_not_pass(name):
    (example,) = re.findall(r"^\[\[alerts]]\n(?:\w.*\n)+", (ROOT / "docs" / name).read_text(), re.MULTILINE)
    local = read_suite(ROOT / "deployments/suites/local.toml")
    assert unheard(local.replace(alerts=tomllib.loads(example)["alerts"])) == []
