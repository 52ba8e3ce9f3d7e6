"""Other systems: pins of the locks as their wheels, resolved and not installed, and commands that their tools know."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.unit.infra.documented_commands import BLOCK
from tests.unit.infra.pins import ROOT, requirements

SYSTEMS = {"macosx_14_0_arm64": "all", "win_amd64": "controller"}
"""The lock whose every pin has a wheel for the system: on Windows records are read, and no round runs."""


@pytest.mark.long
@pytest.mark.index
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


OF_GNU = re.compile(
    r"\bsed\b[^|\n]*(?: -i\b| '\d+[iac] |s/[^'\n]*/[^'/\n]*\\n)"
    r"|\b(?:readlink -f|date -d|grep -\w*P|stat -c|xargs -r|base64 -w)\b"
    r"|\b(?:cp|ls|mv|du|sort|mktemp) --\w"
)
"""What macOS' own tools refuse, or take for something else: an edit in place, an inserted line, a new line by `\\n`."""
ON_A_MAC = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/tutorials/*.md",
    "docs/how-to/*.md",
    "Makefile",
    "infra/lock.sh",
    "examples/*.sh",
)


def test_commands_for_a_person_s_machine_are_those_of_every_system() -> None:
    assert all(
        map(OF_GNU.search, ("sed '1i a'", "sed -i s/a/b/ x", r"sed 's/a/b\nc/'", "readlink -f x", "cp --link a b"))
    )
    wrong = []
    for path in (path for pattern in ON_A_MAC for path in sorted(ROOT.glob(pattern))):
        text = path.read_text("utf-8")
        shell = [code for _, code in BLOCK.findall(text)] if path.suffix == ".md" else [text]
        wrong += [f"{path.relative_to(ROOT)}: {match[0]}" for code in shell for match in OF_GNU.finditer(code)]
    assert wrong == []
