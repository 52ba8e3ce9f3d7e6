"""What is captured, by content: command, files, settings and the team's own sources."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import nn

from plumbline.schema.digest import digest_bytes, digest_file
from plumbline.schema.errors import ConfigurationError

_LONGEST = 8000
_SECRET = re.compile(r"(token|secret|password|key|credential)", re.IGNORECASE)


def _own_sources(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the source of each module class that no package's version identifies."""
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file is None or "site-packages" in file or "dist-packages" in file:
            continue
        try:
            text = inspect.getsource(kind)
        except (OSError, TypeError):
            continue
        yield f"source {kind.__qualname__}", text if len(text) <= _LONGEST else digest_bytes(text.encode())


def _command() -> str:
    """Return the command line, without the values of arguments that look like secrets."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    shown = [
        "***" if place and _SECRET.search(words[place - 1]) and words[place - 1].startswith("-") else word
        for place, word in enumerate(words)
    ]
    hidden = [re.sub(r"=.*", "=***", word) if word.startswith("-") and _SECRET.search(word) else word for word in shown]
    return " ".join(map(shlex.quote, hidden))[:_LONGEST]


def describe_program(model: nn.Module, config: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """Return the identity; raise `ConfigurationError` for a configuration file that does not exist."""
    found, script = {"command": _command()}, Path(sys.argv[0])
    if script.is_file():
        found[f"file {script.name}"] = digest_file(script)
    for each in config:
        path = Path(each)
        if not path.is_file():
            raise ConfigurationError("no such file", where=str(path), key="config")
        found[f"file {path.name}"] = digest_file(path)
    return found | dict(_own_sources(model))
