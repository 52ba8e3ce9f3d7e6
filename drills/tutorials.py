"""`python -m drills.tutorials`: type every command of the tutorials, in order, in a clone without an environment.

A part is a section of a page, such as `platform-engineer-1`. Each command has to end with the exit code that the page
states, and to print the block below it; digits may differ. A stock Prefect server stands for the page's `HOST:4200`.
The clone is made by `platform-engineer-1`, with `make run`; `--home DIR` keeps it, and a later call walks other parts.
`--out FILE` keeps each step of each part.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drills.newcomer import Newcomer, Part, clone_of_the_repository, walk
from drills.transcript import wait_until
from tests.flows.webhook_server import Receiver

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("platform-engineer", "researcher", "ci")
MOST_SECONDS = 3600
_SECTION = re.compile(r"^## (\d+)\. (.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBERS = re.compile(r"[0-9a-f]*\d[0-9a-f.,]*")


@dataclass(frozen=True, slots=True)
class Line:
    """One command of a page, its exit code, and the lines that the page shows below."""

    command: str
    code: int
    shown: tuple[str, ...] = ()


def lines_of(section: str) -> list[Line]:
    """Return the commands of a section."""
    found: list[Line] = []
    for kind, text in _BLOCK.findall(section):
        if kind == "bash":
            for line in re.sub(r"\\\n\s*", " ", text).splitlines():
                command, _, comment = line.partition("  #")
                code = re.search(r"exit code (\d)", comment)
                found.append(Line(command.strip(), int(code[1]) if code else 0))
        elif not kind and found:  # a block below a command is what it prints
            found[-1] = Line(found[-1].command, found[-1].code, tuple(text.splitlines()))
    return found


def walk_section(section: str, person: Newcomer, _hook: Receiver) -> None:
    """Type each command of a section."""
    person.work = person.checkout
    for line in lines_of(section):
        name, _, value = line.command.removeprefix("export ").partition("=")
        if line.command.startswith("source "):
            continue  # every command is typed in a shell that has done so
        if line.command.startswith("export "):
            person.variables[name] = value.replace("HOST:4200", _server(person)) if "HOST" in value else value
        elif line.command == "make run":
            if not (person.checkout / "Makefile").exists():
                clone_of_the_repository(person.checkout)
            person.type(line.command, line.code, where=person.checkout)
        else:
            said = person.type(line.command, line.code) + person.errors
            missing = [shown for shown in line.shown if _plain(shown) not in _plain(said)]
            if line.shown:
                person.found(
                    not missing, f"it prints what the page shows{''.join(f', but: {text}' for text in missing)}"
                )
        if " --out bundle/" in line.command:
            _upload(person)


def _plain(text: str) -> str:
    return _NUMBERS.sub("#", " ".join(text.split()))


def _upload(person: Newcomer) -> None:
    """Put the bundle and the notebook into a folder of their own, as on another machine."""
    elsewhere = person.home / "elsewhere"
    shutil.rmtree(elsewhere, ignore_errors=True)
    shutil.copytree(person.work / "bundle", elsewhere / "bundle")
    shutil.copy2(person.checkout / "deployments/notebooks/plumbline.ipynb", elsewhere)


def notebook(person: Newcomer, _hook: Receiver) -> None:
    """Run the notebook beside its bundle, and bring its record home."""
    elsewhere = person.home / "elsewhere"
    person.type(f"cd {shlex.quote(str(elsewhere))} && jupyter execute plumbline.ipynb", 0)
    person.found((elsewhere / "record.zip").is_file(), "the notebook leaves record.zip")
    shutil.unpack_archive(elsewhere / "record.zip", person.checkout / "record")


def _server(person: Newcomer) -> str:
    """Start a stock Prefect server; return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    prefect = str(person.checkout / ".venv/bin/prefect")
    command = [prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    person.background.append(
        subprocess.Popen(
            command, env=person.variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )
    )  # fmt: skip
    wait_until(lambda: _answers(f"http://127.0.0.1:{port}/api/health"), "the Prefect server answers", 120)
    return f"127.0.0.1:{port}"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - the server above
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def parts() -> dict[str, Part]:
    """Return each section with commands; the notebook before the section that compares its record."""
    found: dict[str, Part] = {}
    for page in PAGES:
        for number, section in _SECTION.findall((ROOT / f"docs/tutorials/{page}.md").read_text("utf-8")):
            if "plumbline.ipynb" in section:
                found["notebook"] = notebook
            if lines_of(section):
                found[f"{page}-{number}"] = partial(walk_section, section)
    return found


def main() -> int:
    """Walk the tutorials, or the parts named; return the number of parts that failed."""
    return walk(parts(), __doc__, MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
