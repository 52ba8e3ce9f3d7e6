"""Scripts of the ten loops, each with a planted fault."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

FOLDERS = Path(__file__).parent, Path(__file__).parents[3] / "examples" / "capture"
_TABLE = tomllib.loads((FOLDERS[0] / "faults.toml").read_text(encoding="utf-8"))
KINDS: dict[str, dict[str, Any]] = _TABLE["kinds"]
LOOPS: dict[str, dict[str, Any]] = _TABLE["loops"]
FURTHER = tuple(name for name in LOOPS if (FOLDERS[0] / f"{name}.py").exists())
for _own in LOOPS.values():
    _own.setdefault("root", "model")
    _own.setdefault("data", "loss = functional")
    _own.setdefault("layer", f"{_own['module']}.weight")


def filled(text: str, name: str) -> str:
    """Return a text with a loop's own values."""
    own = {key: value for key, value in LOOPS[name].items() if isinstance(value, str)}
    return re.sub(r"(?<!\\g)<(\w+)>", lambda found: own[found[1]], text)


def script(name: str, fault: str = "", *, is_other: bool = False) -> str:
    """Return a loop's script with a fault, or without one; `is_other` gives it a different attention."""
    own = LOOPS[name]
    text = next(path for folder in FOLDERS if (path := folder / f"{name}.py").exists()).read_text(encoding="utf-8")
    always = [*own.get("always", ()), [r"(seed=7|steps=10)\)", r"\1, start=START)"]]
    edits = own.get("edits", {}).get(fault) or KINDS[fault]["edits"] if fault else []
    for pattern, new in [*always, *(own.get("other", ()) if is_other else ()), *edits]:
        text, num = re.subn(filled(pattern, name), filled(new, name), text, flags=re.MULTILINE)
        if not num:
            raise ValueError(f"{name}: {fault}: {pattern} matches nothing")
    return text


def expected(name: str, fault: str) -> tuple[str, int, str]:
    """Return the cause that must be named, its first step, and the name of its place or ""."""
    kind = KINDS[fault]
    step = LOOPS[name].get("steps", {}).get(fault, kind.get("step", 0))
    return LOOPS[name].get("codes", {}).get(fault, kind["code"]), step, filled(kind.get("at", ""), name)
