"""Commands that the documentation names: each line of a block of shell, and each command in a sentence."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(path for folder in ("docs", "infra", "examples") for path in sorted((ROOT / folder).rglob("*.md"))),
]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SHELL = ("bash", "sh", "shell", "console")
_SETTING = re.compile(r"(?:export )?(?:[A-Z_]+=(?:\"[^\"]*\"|\$\(.*\)|\S)*\s*)+")
PROGRAMS = (
    "apt-get", "aws", "az", "bash", "docker", "gcloud", "git", "jq", "kubectl", "make", "npm", "pip", "plumbline",
    "pre-commit", "prefect", "printf", "python", "python3", "source", "sudo", "systemctl", "tofu", "uv",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and where it stands; a sentence may leave out arguments."""

    page: str
    words: tuple[str, ...]
    is_whole: bool

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def pages() -> list[Path]:
    return [page for page in _PAGES if "node_modules" not in page.parts]


def commands() -> list[Command]:
    """Return every command of the documentation, and of the examples' scripts."""
    found = [command for page in pages() for command in _of_page(page)]
    for script in sorted((ROOT / "examples").glob("*.sh")):
        found += [
            command for command in _of_shell(script, script.read_text("utf-8")) if command.words[0] == "plumbline"
        ]
    return list(dict.fromkeys(found))


def _of_page(page: Path) -> list[Command]:
    text = page.read_text("utf-8")
    whole = [command for kind, block in BLOCK.findall(text) if kind in _SHELL for command in _of_shell(page, block)]
    rest = BLOCK.sub("", text)
    # A block that is only indented names no language: it is shell if it begins with a program.
    indented = [line for line in re.findall(r"^    (\S.*)$", rest, re.MULTILINE) if _program(line) in PROGRAMS]
    whole += [command for line in indented for command in _of_line(page, line, is_whole=True)]
    spans = re.findall(r"`([^`\n]+)`", rest)
    return whole + [command for span in spans for command in _of_line(page, span, is_whole=False)]


def _program(line: str) -> str:
    return (_SETTING.sub("", line, count=1).split() or [""])[0]


def _of_shell(path: Path, text: str) -> list[Command]:
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [command for line in lines for command in _of_line(path, line.strip(), is_whole=True)]


def _of_line(page: Path, line: str, *, is_whole: bool) -> list[Command]:
    """Return the commands of one line: without comment, settings and the environment's folder."""
    found = []
    for part in re.split(r" && | \| ", re.sub(r"(^|\s)#.*$", "", line)):
        text = _SETTING.sub("", part, count=1) if _SETTING.match(part) else part
        words = text.split() if not is_whole else shlex.split(text)
        # In a sentence, one word names a program, and two may name a format: `pip freeze`, `uv export`.
        if not words or (not is_whole and (len(words) == 1 or (len(words) == 2 and words[0] in ("npm", "pip", "uv")))):
            continue
        name = words[0].removeprefix(".venv/bin/").rpartition("/opt/plumbline/venv/bin/")[2]
        if is_whole or name in PROGRAMS:
            found.append(Command(str(page.relative_to(ROOT)), (name, *words[1:]), is_whole))
    return found
