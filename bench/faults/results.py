"""Result files of the benchmarks, one line for each cell, and their provenance: machine, commit, the judge's digest."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench" / "results"


def machine() -> str:
    """Return processor, memory, device and versions in words."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    words = (
        f"{os.cpu_count()} cores {model}", torch.backends.cpu.get_cpu_capability(), f"{memory:.0f} GiB",
        f"Python {platform.python_version()}", f"torch {torch.__version__} {device}",
        f"transformers {version('transformers')}",
    )  # fmt: skip
    return ", ".join(words)


def judge_digest() -> str:
    """Return 12 digits of a digest of the judge's code."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "plumbline" / "judge").rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit() -> str:
    """Return the working tree's commit, with `+` if `plumbline` differs."""
    answers = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "plumbline"])
    ]
    return answers[0] + ("+" if answers[1] else "")


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
