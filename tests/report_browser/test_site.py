"""The site as a real browser sees it, on a desk and in a hand."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from plumbline.night.rounds.site import connect_reports, write_site
from tests.unit.report.site_store import filled_store, night

MEASURE = r"""
<script>
window.onload = () => {
  const found = [];
  for (const holder of document.querySelectorAll("iframe")) {
    const frame = holder.contentDocument, name = holder.title, root = frame.documentElement;
    if (root.scrollWidth > root.clientWidth) found.push(name + " scrolls sideways");
    for (const table of frame.querySelectorAll(".wide"))
      if (table.scrollWidth > table.clientWidth + 1) found.push(name + " cuts a table");
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
      if (link.href && !inside.test(link.href)) found.push(name + " leaves: " + link.href);
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_is_reached_by_keys_and_asks_for_nothing(browser, tmp_path, theme):
    """One start of the browser for all pages and widths: each costs seconds."""
    store = tmp_path / "central"
    store.mkdir()
    central, suite = filled_store(store, platforms=20, nights=40)
    write_site(central, suite)
    connect_reports(central, "nightly", [night(38)], "")
    pages = ["site/index.html", "site/nightly/index.html", "site/nightly/platform-azure.html",
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
