"""Result files of the benchmark: their provenance, and one line for each cell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.faults.machine import commit, machine

FOLDER = Path(__file__).resolve().parents[1] / "results"


def read_result(path: Path) -> dict[str, Any]:
    """Return a result file's content, without cells if it does not exist."""
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {"cells": []}
    return found


def read_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a result file."""
    found: list[dict[str, Any]] = read_result(path)["cells"]
    return found


def write_result(path: Path, command: str, cells: Iterable[dict[str, Any]], **more: Any) -> None:
    """Write a head, and one line for each cell, atomically."""
    head = {"command": command, "machine": machine(), "commit": commit(), **more}
    lines = ",\n".join(f"  {json.dumps(cell, ensure_ascii=False)}" for cell in cells)
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "cells": [\n{lines}\n ]\n}}\n'
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
