"""Provenance of a benchmark result: machine, commit, and digest of the judge's code."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def machine() -> str:
    """Return processor, memory and versions in words."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    isa = torch.backends.cpu.get_cpu_capability()
    return f"{os.cpu_count()} cores {model}, {isa}, {memory:.0f} GiB, Python {platform.python_version()}, torch {torch.__version__} CPU"  # noqa: E501


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
