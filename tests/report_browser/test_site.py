"""The site as a real browser sees it, on a desk and in a hand."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from plumbline.night.central.series import write_series
from plumbline.night.rounds.site import connect_reports, write_site
from plumbline.upgrade.answer import Speed, UpgradeAnswer
from plumbline.upgrade.report import html_report
from tests.unit.report.site_store import filled_store, night, series_of

UPGRADE = UpgradeAnswer(
    verdict="inconclusive", current="locks/all.txt", candidate="locks/next.txt", notes=("3 pairs do not decide",),
    speed=Speed(outcome="undecided", drop=0.01, low=-2.62, high=0.459, num_pairs=3, pairs=(0.12, -0.4, 0.05)),
)  # fmt: skip

MEASURE = r"""
<script>
window.onload = () => {
  const found = [];
  for (const holder of document.querySelectorAll("iframe")) {
    const frame = holder.contentDocument, name = holder.title, root = frame.documentElement;
    if (root.scrollWidth > root.clientWidth) found.push(name + " scrolls sideways");
    for (const table of frame.querySelectorAll(".wide"))
      if (table.scrollWidth > table.clientWidth + 1) found.push(name + " cuts a table");
    for (const cell of frame.querySelectorAll("td.n"))
      if (cell.scrollWidth > cell.clientWidth + 1) found.push(name + " cuts " + cell.textContent);
    for (const svg of frame.querySelectorAll("figure svg")) {
      const room = svg.getBoundingClientRect();
      for (const text of svg.querySelectorAll("text"))
        if (room.width && text.getBoundingClientRect().right > room.right + 1)
          found.push(name + " clips " + text.textContent);
    }
    for (const link of frame.querySelectorAll("a, summary")) {
      link.focus();
      if (frame.activeElement !== link) found.push(name + ": no key reaches " + link.textContent);
      if (!link.textContent.trim()) found.push(name + ": a link without a name");
      const inside = /^(file:|http:\/\/127\.0\.0\.1:4200\/)/;
      if (link.href && !link.rel && !inside.test(link.href)) found.push(name + " leaves: " + link.href);
    }
    const shown = color => color.match(/[\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const behind = part => { for (; part; part = part.parentElement) {
      const color = shown(frame.defaultView.getComputedStyle(part).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color; } return [255, 255, 255]; };
    for (const part of frame.querySelectorAll("th, td, p, h1, a, b.cell")) {
      const own = shown(frame.defaultView.getComputedStyle(part).color), text = part.textContent.trim();
      const [one, two] = [light(own), light(behind(part))].sort((a, b) => b - a);
      if (text && (one + .05) / (two + .05) < 4.5) found.push(name + ": too little contrast: " + text.slice(0, 30));
    }
    if (frame.querySelectorAll("h1").length !== 1) found.push(name + " has no single h1");
    if (frame.defaultView.performance.getEntriesByType("resource").length) found.push(name + " requests something");
  }
  found.push(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.title = JSON.stringify([...new Set(found)]);
};
</script>
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_is_reached_by_keys_and_asks_for_nothing(browser, tmp_path, theme):
    """One start of the browser for all pages and widths: each costs seconds."""
    store = tmp_path / "central"
    store.mkdir()
    central, suite = filled_store(store, platforms=20, nights=40)
    write_site(central, suite)
    connect_reports(central, "nightly", [night(38)], "")
    central.put_text("site/upgrade.html", html_report(UPGRADE))
    pages = ["site/index.html", "site/nightly/index.html", "site/nightly/platform-azure.html", "site/upgrade.html",
             f"rounds/nightly/{night(38)}/report.html"]  # fmt: skip
    frames = "".join(
        f'<iframe title="{page} at {width}" src="central/{page}" style="border:0;width:{width}px"></iframe>'
        for page in pages
        for width in (1240, 390)
    )
    outer = tmp_path / "frames.html"
    outer.write_text(f"<!doctype html><body style='margin:0'>{frames}{MEASURE}</body>", encoding="utf-8")
    dark = ["--enable-features=WebContentsForceDark", "--force-dark-mode"] if theme == "dark" else []
    done = browser._run("--allow-file-access-from-files", *dark, "--dump-dom", outer.as_uri())
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1])) == [theme]


FIRST_SCREEN = r"""
<script>
window.onload = async () => {
  const seen = {};
  for (const holder of document.querySelectorAll("iframe")) {
    const frame = holder.contentDocument, tip = frame.querySelector(".tip"), said = [];
    const shown = part => { const box = part.getBoundingClientRect(); return box.width && box.bottom <= 844; };
    for (const line of [...frame.querySelectorAll("figure svg polyline[data-words]")].filter(shown)) {
      const room = line.closest("svg").getBoundingClientRect(), { x, y } = line.points[line.points.length - 1];
      const scale = room.width / line.closest("svg").viewBox.baseVal.width;
      const at = { clientX: room.left + x * scale, clientY: room.top + y * scale };
      line.closest("svg").dispatchEvent(new frame.defaultView.PointerEvent("pointermove", at));
      said.push(tip.hidden ? "" : tip.textContent);
    }
    const words = [...frame.querySelectorAll("h1, h2, p, td, li, .cause, figcaption")].filter(shown);
    const bars = [...frame.querySelectorAll(".bars30 li")].map(bar => bar.getBoundingClientRect());
    const cell = frame.querySelector(".matrix tbody td.drift");
    let led = "";
    if (cell) {
      cell.click();
      await new Promise(done => { holder.onload = done; });
      led = holder.contentWindow.location.href.split("/rounds/")[1];
    }
    seen[holder.title] = {
      said, words: words.map(part => part.textContent.trim()).join(" "), led, bars: bars.length,
      high: bars.filter(bar => bar.height > 40).length, last: Math.round(bars.at(-1)?.right ?? 0),
    };
  }
  document.title = JSON.stringify(seen);
};
</script>
"""


def test_the_first_screen_has_the_numbers_and_the_pointer_reads_them(browser, tmp_path):
    for nights in (40, 1):
        (tmp_path / f"n{nights}").mkdir()
        central, suite = filled_store(tmp_path / f"n{nights}", nights=nights, reports=min(nights, 3))
        write_series(central, series_of("aws", nights))
        write_site(central, suite)
    central.put_text("site/upgrade.html", html_report(UPGRADE))
    pages = {"start": "n40/site/index.html", "suite": "n40/site/nightly/index.html",
             "platform": "n40/site/nightly/platform-azure.html", "first": "n1/site/nightly/platform-aws.html",
             "upgrade": "n1/site/upgrade.html"}  # fmt: skip
    frames = "".join(
        f'<iframe title="{name} {width}" src="{page}" style="border:0;width:{width}px;height:844px"></iframe>'
        for name, page in pages.items()
        for width in (1240, 390)
    )
    outer = tmp_path / "frames.html"
    outer.write_text(f"<!doctype html><body style='margin:0'>{frames}{FIRST_SCREEN}</body>", encoding="utf-8")
    done = browser._run("--allow-file-access-from-files", "--virtual-time-budget=20000", "--dump-dom", outer.as_uri())
    seen = json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    for width in (1240, 390):
        start = seen[f"start {width}"]
        assert (start["bars"], start["high"]) == (30, 11)
        assert start["last"] <= width
        assert any(words.startswith("azure, 2025-11-28: 557") for words in start["said"])
        assert "557.1 to 618 samples/s" in start["words"]
        assert seen[f"suite {width}"]["led"] == f"nightly/{night(39)}/report.html#azure"
        assert "557.1 samples/s" in seen[f"platform {width}"]["words"]
        assert "Peak memory 1,192 MiB" in seen[f"first {width}"]["words"]
        assert "run the upgrade again on a machine without other load" in seen[f"upgrade {width}"]["words"]
        assert "3.6 times as fast to 45.9% slower" in seen[f"upgrade {width}"]["words"]
    assert any("reference, 2025-11-28: 612" in words for words in seen["platform 1240"]["said"])
