"""Provenance of a benchmark result: machine, commit, and digest of the judge's code."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


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
