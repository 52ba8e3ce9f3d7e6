"""`python -m drills.newcomer`: walk a newcomer's path on a bare machine, by the README's own commands.

A copy of the repository without an environment, an empty home, and the commands that stand in the README: `make run`,
a suite of one's own rows with text labels, two nights, a drift that the user causes, its explanation, and an alert
whose link opens the report. `--environment DIR` takes a checkout that is installed already, and leaves `make run` out.
`--home DIR` keeps the home, in which a later call may walk other parts. `--out FILE` keeps each step of each part.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drills.transcript import expect, say
from tests.flows.webhook_server import Receiver, receiver

__all__ = ["Newcomer", "Part", "clone_of_the_repository", "main", "walk"]

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_SECONDS = 900
MOST_COMMANDS = 6
MOST_VALUES = 5
_KEPT = re.compile(
    r"(?i)(pip_|npm_|node_|ssl_|requests_ca|curl_ca|https?_proxy|no_proxy|lang$|tz$|torch$|omp_num_threads$)"
)
"""Variables of the machine that a newcomer's shell has too: its network, and its threads where it is shared."""
_SERVE = "plumbline store site suite.toml --serve"
_BLOCKS = re.compile(r"^```(bash|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _block(kind: str, words: str) -> list[str]:
    """Return the lines of the README's block of this kind that contains `words`, without comments."""
    (found,) = [text for found_kind, text in _BLOCKS.findall(README) if found_kind == kind and words in text]
    return [re.sub(r"\s+#.*$", "", line) for line in found.splitlines()] if kind == "bash" else found.splitlines()


class Newcomer:
    """A person with an empty home, in one shell, who types what the README says."""

    def __init__(self, home: Path, checkout: Path) -> None:
        self.home, self.checkout = home, checkout
        self.work = home / "mine"
        self.work.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if _KEPT.match(name)}
        path = f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        self.variables = {**kept, "HOME": str(home), "PATH": path, "TERM": "dumb"}
        self.steps: list[dict[str, Any]] = []
        self.background: list[subprocess.Popen[str]] = []
        self.errors = ""
        """What the last line wrote to stderr."""

    def type(self, line: str, code: int, where: Path | None = None) -> str:
        """Run one line; check its exit code; return what it printed."""
        began = time.monotonic()
        command = f"source {shlex.quote(str(self.checkout / '.venv/bin/activate'))} && {line}"
        done = subprocess.run(
            ["bash", "-c", line if where else command], cwd=where or self.work, env=self.variables,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=MOST_SECONDS,
        )  # fmt: skip
        seconds, self.errors = round(time.monotonic() - began, 1), done.stderr
        self.steps.append({"command": line, "exit_code": done.returncode, "seconds": seconds, "found": []})
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        expect(done.returncode == code, f"`{line}`: exit code {done.returncode} of {code}, {seconds} s: {last}")
        return done.stdout

    def start(self, line: str) -> None:
        """Run one line that goes on in the background."""
        command = (
            f"source {shlex.quote(str(self.checkout / '.venv/bin/activate'))} && exec {line.removesuffix('&').strip()}"
        )
        child = subprocess.Popen(
            ["bash", "-c", command], cwd=self.work, env=self.variables, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.background.append(child)
        stdout = child.stdout
        assert stdout is not None
        self.steps.append({"command": line, "exit_code": None, "seconds": 0.0, "found": []})
        self.found("until Ctrl-C" in stdout.readline(), f"`{line}` serves the pages")

    def found(self, condition: bool, statement: str) -> None:
        """Check one thing that the newcomer sees."""
        expect(condition, statement)
        self.steps[-1]["found"].append(statement)

    def end(self) -> None:
        """End what goes on in the background."""
        for child in self.background:
            os.killpg(child.pid, signal.SIGINT)
            child.wait(30)
            if child.stdout:
                child.stdout.close()
        self.background.clear()


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - the link of the alert
        return str(answer.read().decode())


def _visible(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)).split())


def clone_of_the_repository(into: Path) -> Path:
    """Clone the last commit, with a remote on a host as a team's has; `pip freeze` writes its URL."""
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(into)], check=True)
    remote = ["git", "remote", "set-url", "origin", "https://git.example.com/team/plumbline.git"]
    subprocess.run(remote, cwd=into, check=True)
    return into


def _write_reviews(path: Path, rows: int = 1200) -> None:
    """Write rows with text labels, as a person has them."""
    dice = random.Random(3)
    words = {
        "positive": ["great", "lovely", "warm", "bright", "friendly", "quick", "tidy", "fresh", "gentle", "solid"],
        "negative": ["awful", "cold", "rude", "slow", "dirty", "stale", "broken", "harsh", "dull", "weak"],
    }
    things = ["hotel", "room", "phone", "dinner", "staff", "book", "train", "coffee", "garden", "lamp"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(rows):
            label = dice.choice(list(words))
            (one, two), (thing, other) = dice.sample(words[label], 2), dice.sample(things, 2)
            writer.writerow([f"the {thing} was {one} and the {other} felt {two}", label])


def make_run(person: Newcomer, _hook: Receiver) -> None:
    """Set everything up and run the first round, from a clone without an environment."""
    clone_of_the_repository(person.checkout)
    expect("make run " in README, "the README begins with make run")
    said = person.type("make run", 0, where=person.checkout)
    person.found("✓ PASS local" in said, "make run prints the verdict pass")
    report = Path(re.findall(r"^report (\S+)", said, re.MULTILINE)[0])
    words = _visible(report.read_text(encoding="utf-8"))
    person.found("aws-local" in words and "azure-local" in words, "the report opens, and names both platforms")


def own_suite(person: Newcomer, hook: Receiver) -> None:
    """Follow the README's block about a suite of one's own: two nights and an accepted baseline."""
    _write_reviews(person.work / "reviews.csv")
    lines = [
        line for line in _block("bash", "plumbline init --data reviews.csv") if line and not line.startswith("source")
    ]
    commands = [line for line in lines if not line.startswith("export")]
    values = re.findall(r"(?<= --)(?:data|alert|report-url) \S+|PLUMBLINE_ALERT=\S+", "\n".join(lines))
    nights = iter(("no baseline yet: one and two", ""))
    for line in lines:
        if line.startswith("export PLUMBLINE_ALERT="):
            person.variables["PLUMBLINE_ALERT"] = hook.url
        elif line.endswith("--serve"):
            person.start(line)
        elif line.startswith("plumbline run"):
            said = person.type(line, 0)
            person.found("✓ PASS nightly" in said, "the round passes")
            wanted = next(nights)
            person.found(
                "no baseline yet" in said if wanted else "no baseline yet" not in said, wanted or "it has a baseline"
            )
        else:
            said = person.type(line, 0)
            word = "2 platforms" if " init " in line else "1 accepted"
            person.found(word in said, f"it says {word}")
    person.found(len(commands) <= MOST_COMMANDS, f"{len(commands)} commands, at most {MOST_COMMANDS}")
    person.found(len(values) <= MOST_VALUES, f"{len(values)} values, at most {MOST_VALUES}: {', '.join(values)}")
    person.found(not hook.got, "nothing is alerted about nights that pass")


def drift(person: Newcomer, hook: Receiver) -> None:
    """Change one platform's labels as the README shows, and read the alert."""
    if not person.background:
        person.start(_SERVE)
    person.variables["PLUMBLINE_ALERT"] = hook.url
    with (person.work / "suite.toml").open("a", encoding="utf-8") as suite:
        suite.write("\n" + "\n".join(_block("toml", "[local.two]")) + "\n")
    said = person.type("plumbline run suite.toml", 1)
    person.found("DRIFT" in said and "data.labels" in said, "the round is drift: data.labels")
    person.found(len(hook.got) == 1, f"one alert has arrived: {[alert['title'] for alert in hook.got]}")
    message = f"{hook.got[0]['title']}\n{hook.got[0]['message']}"
    person.found("two" in message and "data.labels" in message, "the alert names the platform and the cause")
    links = re.findall(r"http://127\.0\.0\.1:8765/[^\s\"'<>)\]]+", message)
    person.found(len(links) >= 1, f"it links to the report: {links[:1]}")
    page = _fetch(links[0])
    words = _visible(page)
    person.found("two has drifted" in words, "the link opens the report of the drift")
    person.found("positive" in words and "negative" in words, "the report shows the labels in the user's own words")
    index = _visible(_fetch(links[0].partition("/rounds/")[0] + "/site/nightly/index.html"))
    person.found(index.count("two: data.labels") == 1, "the site's matrix shows this night's drift")
    said = person.type("plumbline explain data.labels", 0)
    expect("plumbline explain data.labels" in README, "the README says how to look a cause up")
    person.found("Evidence:" in said and "Do:" in said, "explain gives the evidence and the action")


Part = Callable[[Newcomer, Receiver], None]
PARTS: dict[str, Part] = {"make-run": make_run, "own-suite": own_suite, "drift": drift}


def main() -> int:
    """Walk the path, or the parts named; return the number of parts that failed."""
    return walk(PARTS, __doc__, MOST_SECONDS)


def walk(parts: Mapping[str, Part], about: str | None, most_seconds: float) -> int:
    """Walk the parts that the command line names; return the number that failed, or 1 if they took too long."""
    # A shell that starts the drill in the background ignores SIGINT, and its children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--environment", type=Path, metavar="DIR", help="an installed checkout: leave make-run out")
    parser.add_argument("--home", type=Path, metavar="DIR", help="the newcomer's home (default: a temporary folder)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the steps in this file")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(parts):
        parser.error(f"no part of this name: {', '.join(sorted(unknown))}")
    chosen = args.parts or [name for name in parts if name != "make-run" or args.environment is None]
    with tempfile.TemporaryDirectory(prefix="newcomer-", ignore_cleanup_errors=True) as folder, receiver() as hook:
        home = (args.home or Path(folder)).resolve()
        person = Newcomer(home, (args.environment or home / "plumbline").resolve())
        try:
            outcomes = []
            for name in chosen:
                outcomes.append(_walk(name, parts[name], person, hook))
                if args.out:
                    _keep(args.out, outcomes[-1], home)
                if not outcomes[-1]["passed"]:
                    break
        finally:
            person.end()
    seconds = sum(outcome["seconds"] for outcome in outcomes)
    say(f"{', '.join(chosen)}: {seconds:.0f} s, wanted {most_seconds:.0f}")
    return sum(not outcome["passed"] for outcome in outcomes) or int(seconds > most_seconds)


def _walk(name: str, part: Part, person: Newcomer, hook: Receiver) -> dict[str, Any]:
    """Walk one part; return its outcome."""
    print(name, flush=True)
    began, failed = time.monotonic(), ""
    person.steps = []
    try:
        part(person, hook)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        failed = str(error)
        say(f"FAILED: {failed}")
    load = [round(value, 1) for value in os.getloadavg()]
    seconds = round(time.monotonic() - began, 1)
    outcome = {"name": name, "passed": not failed, "failed": failed, "seconds": seconds, "load_average": load}
    return {**outcome, "steps": person.steps}


def _keep(out: Path, outcome: dict[str, Any], home: Path) -> None:
    """Write one part into the file; replace an earlier outcome of it."""
    parts = json.loads(out.read_text(encoding="utf-8"))["parts"] if out.exists() else []
    parts = [part for part in parts if part["name"] != outcome["name"]] + [outcome]
    place = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    text = json.dumps({"place": place, "parts": parts}, indent=1, ensure_ascii=False)
    out.write_text(text.replace(str(home), "HOME") + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
