"""Processes whose wall clock is off."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path


def jumped_clock(folder: Path, seconds: float) -> dict[str, str]:
    """Return variables that move a process's wall clock; the file in CLOCK_JUMP moves it again."""
    library, jump = folder / "clock_jump.so", folder / "clock_jump"
    source = Path(__file__).with_name("clock_jump.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    jump.write_bytes(struct.pack("d", seconds))
    return {"LD_PRELOAD": str(library), "CLOCK_JUMP": str(jump)}
