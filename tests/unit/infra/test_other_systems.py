"""Pins of the locks as wheels of other systems: resolved on the package index, and not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.unit.infra.pins import ROOT, requirements

pytestmark = [pytest.mark.long, pytest.mark.index]

SYSTEMS = {"macosx_14_0_arm64": "all", "win_amd64": "controller"}
"""The lock whose every pin has a wheel for the system: on Windows records are read, and no round runs."""


@pytest.mark.parametrize(("platform", "lock"), SYSTEMS.items())
def test_every_pin_has_a_wheel_of_the_system(platform: str, lock: str, tmp_path: Path) -> None:
    wanted = requirements(lock)
    place = {"python_version": "3.12", "python_full_version": "3.12.0"}
    pins = [
        f"{item.name}{item.specifier}" for item in wanted.values() if not item.marker or item.marker.evaluate(place)
    ]
    (tmp_path / "pins.txt").write_text("\n".join(pins) + "\n", encoding="utf-8")
    options = [
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--only-binary=:all:",
        "--target",
        str(tmp_path / "none"),
    ]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *options]
    command += ["--platform", platform, "--python-version", "3.12", "--implementation", "cp"]
    done = subprocess.run(
        [*command, "-r", str(tmp_path / "pins.txt")], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    chosen = {
        canonicalize_name(word.rpartition("-")[0]) for word in done.stdout.rpartition("Would install ")[2].split()
    }
    assert len(chosen) == len(pins) > 80
