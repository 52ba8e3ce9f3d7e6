"""Every page in a real Chromium: size, time, console, network, accessibility, keys, width and hostile text.

    make pages

Pages are made from 20 platforms and 400 nights, and opened from the disk at 1240 and 390 pixels, light and dark.
axe-core comes from npm. The exit code is the number of pages with a finding.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from plumbline.localstack.azurite import npm_command, npm_environment
from plumbline.rounds.site import connect_reports, write_site
from plumbline.upgrade.report import html_report
from tests.report_browser.conftest import find_browser
from tests.unit.report.samples import drifted, many, passing, record, report_page, verdict_of
from tests.unit.report.site_store import filled_store, night
from tests.unit.report.test_faces import HOSTILE
from tests.unit.upgrade.test_reports import ANSWER

ROOT = Path(__file__).resolve().parents[2]
AXE = "4.14.1"
MOST_BYTES = 3_000_000
MOST_SECONDS = 2.0
SIZES = ((1240, 900), (390, 844))
THEMES = ("light", "dark")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip
MOST_KEYS = 30
OPENINGS = 3
"""Times that a page is opened for its time: the least counts, as the machine has other work."""
_STATE = """(() => {
  const root = document.documentElement, timing = performance.getEntriesByType("navigation")[0];
  const cut = [...document.querySelectorAll(".wide")].filter(part => part.scrollWidth > part.clientWidth + 1
    && !["auto", "scroll"].includes(getComputedStyle(part).overflowX)).length;
  return {interactive: timing.domInteractive / 1000, title: document.title,
    sideways: root.scrollWidth > root.clientWidth, cut, scripts: document.scripts.length,
    keys: document.querySelectorAll("a[href], summary, [tabindex='0']").length,
    dark: matchMedia("(prefers-color-scheme: dark)").matches};
})()"""
_FOCUSED = """(() => { const part = document.activeElement; if (part === document.body) return null;
  const style = getComputedStyle(part);
  return {name: part.textContent.trim().slice(0, 40) || part.getAttribute("aria-label") || "",
    seen: style.outlineStyle !== "none" || style.boxShadow !== "none"}; })()"""
_AXE = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations.map(rule => ({
  id: rule.id, impact: rule.impact, count: rule.nodes.length, first: rule.nodes[0].html.slice(0, 160),
  why: rule.nodes[0].failureSummary.slice(0, 300)})))"""


class Tab:
    """One tab of a browser, by the DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **options: Any) -> dict[str, Any]:
        """Call a method; keep the events that arrive meanwhile."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": options}))
        while True:
            message = json.loads(self._socket.recv(timeout=120))
            if message.get("id") == self._number:
                return dict(message["result"])
            self.events.append(message)

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + 60
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            if time.monotonic() > deadline:
                raise TimeoutError(url)
            with suppress(TimeoutError):
                self.events.append(json.loads(self._socket.recv(timeout=0.2)))

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of the events of these kinds."""
        return [event["params"] for event in self.events if event.get("method") in methods]


@contextmanager
def browser_tab(program: str, folder: Path) -> Iterator[Tab]:
    """Start a browser with a new profile, and yield its first tab."""
    profile = folder / "profile"
    command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        port_file, deadline = profile / "DevToolsActivePort", time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().strip()):
            if time.monotonic() > deadline:
                raise TimeoutError(program)
            time.sleep(0.1)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            (page,) = [tab for tab in json.load(answer) if tab["type"] == "page"]
        with connect(page["webSocketDebuggerUrl"], max_size=None) as socket:
            tab = Tab(socket)
            for domain in ("Page", "Runtime", "Log", "Network"):
                tab.call(f"{domain}.enable")
            yield tab
    finally:
        process.terminate()
        process.wait(30)


def pages(folder: Path) -> dict[str, Path]:
    """Write the pages; return their files by name."""
    store = folder / "central"
    store.mkdir()
    central, suite = filled_store(store, platforms=20, nights=400)
    write_site(central, suite)
    verdict, records, history = many(20)
    hostile = record("azure", hostname=HOSTILE, packages={HOSTILE: HOSTILE})
    evil = verdict_of("drift", {"aws": passing(), "azure": drifted(notes=(HOSTILE,))}, suite="nightly")
    texts = {
        "round": report_page(verdict, records, history, reference="aws"),
        "hostile round": report_page(evil, {"aws": record("aws"), "azure": hostile}, reference="aws"),
        "upgrade": html_report(ANSWER),
    }
    round_folder = store / f"rounds/nightly/{night(399)}"
    (round_folder / "report.html").write_text(texts.pop("round"), encoding="utf-8")
    connect_reports(central, "nightly", [night(399)], "")
    found = {
        "index": store / "site/index.html",
        "matrix 20 x 400": store / "site/nightly/index.html",
        "platform": store / "site/nightly/platform-azure.html",
        "round": round_folder / "report.html",
    }
    for name, text in texts.items():
        found[name] = folder / f"{name.replace(' ', '-')}.html"
        found[name].write_text(text, encoding="utf-8")
    return found


def examine(tab: Tab, path: Path, size: tuple[int, int], theme: str, axe: str) -> dict[str, Any]:
    """Open one page at one size and in one theme; return what was measured and found."""
    width, height = size
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    times = []
    for _ in range(OPENINGS):
        tab.open(path.as_uri())
        state = tab.evaluate(_STATE)
        times.append(round(state["interactive"], 3))
    names, unseen = [], []
    for _ in range(min(state["keys"], MOST_KEYS)):
        for kind in ("keyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        focused = tab.evaluate(_FOCUSED)
        names.append(focused and focused["name"])
        unseen += [focused["name"]] if focused and not focused["seen"] else []
    own = path.as_uri()
    asked = {event["request"]["url"] for event in tab.named("Network.requestWillBeSent")}
    console = [event["entry"]["text"] for event in tab.named("Log.entryAdded")]
    console += [str(event.get("args") or event.get("exceptionDetails")) for event in
                tab.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown")]  # fmt: skip
    tab.evaluate(axe)
    violations = tab.evaluate(_AXE)
    findings = [f"{rule['impact']}: {rule['id']} ({rule['count']}): {rule['first']}" for rule in violations]
    findings += [f"console: {line}" for line in console]
    findings += [f"requests {url[:120]}" for url in sorted(asked) if url != own and not url.startswith("data:")]
    findings += [f"no key reaches part {place}" for place, name in enumerate(names) if name is None]
    findings += [f"focus is not visible: {name}" for name in unseen]
    findings += ["scrolls sideways"] if state["sideways"] else []
    findings += [f"cuts {state['cut']} tables"] if state["cut"] else []
    findings += ["a script ran"] if state["title"] == "owned" or state["scripts"] else []
    findings += ["has the wrong theme"] if state["dark"] is not (theme == "dark") else []
    findings += [f"interactive after {min(times):.1f} s"] if min(times) > MOST_SECONDS else []
    findings += [f"has {path.stat().st_size} bytes"] if path.stat().st_size >= MOST_BYTES else []
    return {
        "bytes": path.stat().st_size, "interactive_seconds": min(times), "openings": times, "keys_pressed": len(names),
        "findings": findings, "axe": violations,
    }  # fmt: skip


def main() -> int:
    """Examine all pages; return the number of pages with a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the results in this file")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="keep a picture of each page")
    args = parser.parse_args()
    program = find_browser()
    if program is None:
        print("no Chromium: apt-get install chromium", file=sys.stderr)
        return 2
    results = []
    kept = tempfile.TemporaryDirectory(prefix="pages-", ignore_cleanup_errors=True)  # the browser writes to its end
    with kept as name, browser_tab(program, Path(name)) as tab:
        axe = _axe().read_text(encoding="utf-8")
        for page, path in pages(Path(name)).items():
            for size, theme in product(SIZES, THEMES):
                result = examine(tab, path, size, theme, axe)
                results.append({"page": page, "width": size[0], "theme": theme, **result})
                said = "; ".join(result["findings"]) or "ok"
                numbers = f"{result['bytes'] / 1e3:8.0f} kB {result['interactive_seconds']:6.2f} s"
                print(f"{page:16} {size[0]:5} {theme:5} {numbers}  {said}", flush=True)
                if args.pictures:
                    _keep_picture(tab, args.pictures / f"{page.replace(' ', '-')}-{size[0]}-{theme}.png")
    if args.out:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        place = {"machine": platform.machine(), "cores": os.cpu_count(), "browser": version, "axe-core": AXE}
        load = [round(value, 1) for value in os.getloadavg()]
        document = {"place": place, "load_average": load, "pages": results}
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return sum(bool(result["findings"]) for result in results)


def _axe() -> Path:
    """Return axe-core's script; install it on the first call."""
    folder = ROOT / ".venv/axe"
    script = folder / "node_modules/axe-core/axe.min.js"
    if not script.is_file():
        command = npm_command("install", "--prefix", str(folder), f"axe-core@{AXE}")
        subprocess.run(command, env=npm_environment(), check=True)
    return script


def _keep_picture(tab: Tab, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"]))


if __name__ == "__main__":
    sys.exit(main())
