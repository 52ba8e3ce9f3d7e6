"""The report as a real browser sees it."""

from __future__ import annotations

import json
import re
from html import escape, unescape

import pytest

from plumbline.schema.verdict import Note
from tests.unit.report.samples import drifted, many, nights, passing, record, report_page, verdict_of

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def words_of(dom):
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", dom, flags=re.DOTALL)).split())


def test_a_drift_is_seen_with_its_cause_and_nothing_complains(browser):
    records = {"aws": record("aws"), "azure": record("azure", noise=3e-4, start="bert.encoder.layer.0")}
    page = report_page(
        verdict_of("drift", {"aws": passing(), "azure": drifted()}), records, nights(), reference="aws",
        baselines={"azure": record("azure", packages={"torch": "2.12.1"})},
    )  # fmt: skip
    dom, console = browser.open(page)
    assert console == []
    words = words_of(dom)
    assert "azure has drifted: numeric precision differs from the spec." in words
    assert "confirmed: an experiment restored the reference's value, and the difference disappeared" in words
    assert "first: bert.encoder.layer.0.attention.self.query" in words
    assert dom.count('role="img"') == 8  # each chart once for a desktop and once for a phone
    assert dom.count("<details") == 2


def test_what_a_platform_says_of_itself_stays_text(browser):
    hostile = record("azure", hostname=HOSTILE, packages={HOSTILE: HOSTILE})
    verdict = verdict_of("drift", {"aws": passing(), "azure": drifted(notes=(Note(text=HOSTILE),))}, suite="nightly")
    dom, console = browser.open(report_page(verdict, {"aws": record("aws"), "azure": hostile}, reference="aws"))
    assert console == []
    assert "<title>drift" in dom
    assert dom.count("<script") == 1  # the page's own
    assert "<img" not in dom
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in dom


def test_the_page_is_painted(browser):
    """A page that the browser lays out as nothing makes a picture of nothing."""
    page = report_page(verdict_of("pass", {"aws": passing(), "azure": passing()}), {"aws": record("aws")})
    assert browser.screenshot(page, 1240, 1400).stat().st_size > 20_000


MEASURE = r"""
<script>
window.onload = () => {
  const frame = document.querySelector("iframe").contentDocument, found = [];
  for (const svg of frame.querySelectorAll("figure svg")) {
    const room = svg.getBoundingClientRect();
    if (!room.width) continue;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      const aside = box.left < room.left - 1 || box.right > room.right + 1;
      if (aside || box.top < room.top - 1 || box.bottom > room.bottom + 1)
        found.push("clipped: " + text.textContent);
      if (parseFloat(getComputedStyle(text).fontSize) * room.width / svg.viewBox.baseVal.width < 9)
        found.push("tiny: " + text.textContent);
    }
    const ticks = [...svg.querySelectorAll("text.tick[text-anchor=middle]")].map(text => text.getBoundingClientRect());
    for (const one of ticks) for (const other of ticks)
      if (one.left < other.left && one.bottom === other.bottom && one.right + 7 > other.left)
        found.push("names touch on the axis of " + svg.getAttribute("aria-label"));
    const stroke = line => parseFloat(getComputedStyle(line).strokeWidth);
    const lines = [...svg.querySelectorAll("polyline:not(.context)")];
    for (const reference of svg.querySelectorAll("polyline.context"))
      if (lines.some(line => stroke(line) + 2 > stroke(reference))) found.push("an equal line hides the reference's");
    if (room.right > frame.documentElement.clientWidth + 1) found.push("too wide: " + svg.getAttribute("aria-label"));
  }
  for (const piece of frame.querySelectorAll(".piece")) {
    const room = piece.getBoundingClientRect(), range = new Range();
    range.selectNodeContents(piece);
    const box = range.getBoundingClientRect();
    if (box.width && box.top < room.bottom - 1 && box.right > room.right + 1) found.push("cut: " + piece.title);
  }
  for (const bars of frame.querySelectorAll("figure.bars")) {
    const kinds = selector => [...bars.querySelectorAll(selector)].map(part => /k\d/.exec(part.className)[0]);
    const known = new Set(kinds(".swatch"));
    if (known.size && kinds(".piece").some(kind => !known.has(kind))) found.push("a colour without a legend");
  }
  const bottom = part => Math.round(part.getBoundingClientRect().bottom);
  const height = bottom(frame.querySelector("footer")), tip = frame.querySelector(".tip");
  const failed = [...frame.querySelectorAll(".platforms tbody tr")].filter(row => row.querySelector(".drift"));
  const mark = [...frame.querySelectorAll("figure svg g > title")].find(each => each.getBoundingClientRect);
  const place = mark.parentNode.getBoundingClientRect();
  const at = { clientX: (place.left + place.right) / 2, clientY: (place.top + place.bottom) / 2 };
  mark.closest("svg").dispatchEvent(new frame.defaultView.PointerEvent("pointermove", at));
  const hover = !tip.hidden && tip.textContent.length > 3;
  for (const cell of frame.querySelectorAll("td.n"))
    if (cell.scrollWidth > cell.clientWidth + 1) found.push("cut: " + cell.textContent);
  for (const part of frame.querySelectorAll("details")) part.open = true;
  for (const table of frame.querySelectorAll(".wide"))
    if (table.scrollWidth > table.clientWidth + 1) found.push("cut table: " + table.textContent.trim().slice(0, 30));
  if (frame.documentElement.scrollWidth > frame.documentElement.clientWidth) found.push("the page scrolls sideways");
  const cause = frame.querySelector(".cause");
  const seen = cause ? Math.round(cause.getBoundingClientRect().bottom) : -1;
  const drawn = frame.querySelectorAll("figure.chart").length;
  const drifts = Math.max(...failed.map(bottom));
  document.title = JSON.stringify({found: [...new Set(found)], seen, drawn, height, drifts, hover});
};
</script>
"""


@pytest.mark.first(2)
@pytest.mark.parametrize("width", [1240, 390])
@pytest.mark.parametrize("count", [2, 8, 20])
def test_nothing_is_clipped_on_a_desk_or_in_a_hand_and_the_cause_is_on_the_first_screen(browser, count, width):
    verdict, records, history = many(count)
    page = report_page(verdict, records, history, reference="aws")
    frame = f'<iframe style="border:0;width:{width}px;height:844px" srcdoc="{escape(page)}"></iframe>'
    dom, console = browser.open(f"<!doctype html><body style='margin:0'>{frame}{MEASURE}</body>")
    assert console == []
    result = json.loads(unescape(re.search(r"<title>(.*?)</title>", dom)[1]))
    assert result["found"] == []
    assert result["drawn"] == 4
    assert 0 < result["seen"] <= 844
    assert result["hover"]
    if (width, count) == (1240, 20):
        assert result["drifts"] <= 844
        assert result["height"] <= 3000
