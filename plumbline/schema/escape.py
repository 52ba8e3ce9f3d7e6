"""Escaping of untrusted text for each output channel. Pure.

An error message, a hostname or a file's name comes from a worker: it may contain a tag, a mention or an escape
sequence, or begin a line with a command of a CI runner.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

Channel = Literal["plain", "html", "chat", "log"]

_KEPT = frozenset("\n\t")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of controls, invisible and reversing characters, surrogates and separators of lines."""
_REPLACEMENT = "\ufffd"
_ANGLES = str.maketrans({"<": "\u2039", ">": "\u203a"})
_MENTION = re.compile(r"([@!])(?=\w)")
_TAG = re.compile(r"\[(?=[a-z#/@])")
"""Begin of a tag of rich: `prefect deployment run --watch` prints the lines of a log with them."""
_LINK = re.compile(r"\](?=\()")
_COMMAND = re.compile(r"^[^\S\n]*:(?=:)|#(?=#\w*\[)", re.MULTILINE)
"""A line that GitHub (`::error::`, `##[group]`), Azure (`##vso[`) or TeamCity (`##teamcity[`) would execute."""
_LOGIN = re.compile(r"([a-z]://)[^/\s@]+@", re.IGNORECASE)
_SIGNATURE = re.compile(r"(?i)([?&](?:sig|x-amz-signature|x-amz-security-token|x-goog-signature)=)[^&\s]+")
"""Value that authorises a signed link."""
MAX_CHARS = 400
_JOINER = "\u2060"
"""Invisible character that breaks a mention or a link, but not a word."""


def printable(text: str) -> str:
    """Remove control characters (except newline, tab) and CI runner commands from `text`."""
    return inert("".join(char if char in _KEPT or not _is_hidden(char) else _REPLACEMENT for char in text))


def inert(text: str) -> str:
    """Escape CI workflow commands in lines, keeping terminal colours."""
    return _COMMAND.sub(r"\g<0> ", text)


def redact(text: str) -> str:
    """Replace each login in an address with `***`."""
    return _LOGIN.sub(r"\1***@", text)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets, logins and signatures in URLs with `***`."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _SIGNATURE.sub(r"\1***", redact(text))


def one_line(text: str) -> str:
    """Return `text` as one printable line, keeping indentation."""
    return printable(text.replace("\n", " "))


def clean(text: object, limit: int = MAX_CHARS) -> str:
    """Return `text` as one printable line of limited length."""
    line = " ".join(printable(" ".join(str(text)[: 4 * limit].split())).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def first_of(names: Sequence[object], most: int = 5) -> str:
    """Join the first names, with the number of further names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def shorten(text: str, fits: Callable[[str], bool]) -> str:
    """Shorten `text` until it `fits`, keeping address lines and the last line."""
    if fits(text):
        return text
    kept: list[str] = []
    cut: list[str] = []
    for line in reversed(text.splitlines()):
        is_kept = ("://" in line or not (kept or cut)) and fits("\n".join(["…", line, *kept]))
        (kept if is_kept else cut).insert(0, line)
    whole = "\n".join(cut)

    def parts(size: int) -> str:
        return "\n".join([f"{whole[:size].rstrip()}…", *kept])

    return parts(max(0, bisect_left(range(len(whole)), True, key=lambda size: not fits(parts(size))) - 1))


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN


def escape(text: str, channel: Channel) -> str:
    """Return `text` escaped for `channel`.

    "log" is for logs and states of Prefect, whose command line reads tags in them. Chats interpret mentions
    (`<!channel>`) also where they are escaped as entities, so angle brackets become different characters there, and
    mentions and links are broken.
    """
    shown = printable(text)
    if channel == "log":
        return _TAG.sub("[ ", shown)
    if channel == "plain":
        return shown
    shown = _LINK.sub(f"]{_JOINER}", _MENTION.sub(rf"\1{_JOINER}", shown))
    if channel == "html":
        return html.escape(shown, quote=True).replace("\n", "<br>\n")
    return shown.translate(_ANGLES)
