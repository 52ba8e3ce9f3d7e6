"""The report as a real browser sees it."""

from __future__ import annotations

import re

import pytest

from plumbline.report.html import render_report
from tests.unit.report.samples import drifted, nights, passing, record, verdict_of

pytestmark = pytest.mark.browser
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def words_of(dom):
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", dom, flags=re.DOTALL)).split())


def test_a_drift_is_seen_with_its_cause_and_nothing_complains(browser):
    records = {"aws": record("aws"), "azure": record("azure", noise=3e-4, start="bert.encoder.layer.0")}
    page = render_report(
        verdict_of("drift", {"aws": passing(), "azure": drifted()}), records, nights(), reference="aws",
        baselines={"azure": record("azure", packages={"torch": "2.12.1"})},
    )  # fmt: skip
    dom, console = browser.open(page)
    assert console == []
    words = words_of(dom)
    assert "azure has drifted: arithmetic keeps fewer or more bits than the recipe says." in words
    assert "confirmed: an experiment put the suspect back, and the difference went away" in words
    assert "first: bert.encoder.layer.0.attention.self.query" in words
    assert dom.count('role="img"') == 4
    assert dom.count("<details") == 2


def test_what_a_platform_says_of_itself_stays_text(browser):
    hostile = record("azure", hostname=HOSTILE, packages={HOSTILE: HOSTILE})
    verdict = verdict_of("drift", {"aws": passing(), "azure": drifted(notes=(HOSTILE,))}, suite="nightly")
    dom, console = browser.open(render_report(verdict, {"aws": record("aws"), "azure": hostile}, reference="aws"))
    assert console == []
    assert "<title>drift" in dom
    assert "<script" not in dom
    assert "<img" not in dom
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in dom


def test_the_page_is_painted(browser):
    """A page that the browser lays out as nothing makes a picture of nothing."""
    page = render_report(verdict_of("pass", {"aws": passing(), "azure": passing()}), {"aws": record("aws")})
    assert browser.screenshot(page, 1240, 1400).stat().st_size > 20_000
