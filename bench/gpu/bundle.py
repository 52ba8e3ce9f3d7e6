"""`make gpu-bundle`: one archive with all that the checks of a GPU need, for a machine without a network.

    python -m bench.gpu.bundle --out gpu-bundle.tar.gz [--python 3.12] [--platform manylinux_2_28_x86_64 ...]

The other machine has Python, torch and transformers. The archive has this code, the packages that the trainer needs
besides, unpacked in `site/`, and `COMMANDS`: one line for each check, which takes at most eight minutes on a data
centre's GPU and writes its result to `results/`. Datasets and weights are made there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from bench.faults.results import commit
from bench.gpu.checks import CHECKS
from bench.gpu.place import ROOT

CODE = ("plumbline", "bench", "pyproject.toml", "locks/all.txt", "LICENSE")
LEFT_OUT = "bench/results/"
PACKAGES = (
    "accelerate", "annotated-types", "nvidia-ml-py", "packaging", "psutil", "pyarrow", "pydantic", "pydantic-core",
    "typing-extensions", "typing-inspection",
)  # fmt: skip
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux2010_x86_64")
MOST_BYTES = 60 * 1000**2


def pins() -> list[str]:
    """Return the packages with the versions of the lock, and of the benchmarks' peers."""
    text = "\n".join((ROOT / name).read_text("utf-8") for name in ("locks/all.txt", "bench/requirements.txt"))
    versions = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))
    return [f"{name}=={versions[name]}" for name in PACKAGES]


def commands() -> str:
    """Return the commands to run in the unpacked folder, one a line."""
    lines = [
        "# In the unpacked folder: the first line is what eight minutes settle. Each check writes results/CHECK.json.",
        *(
            f"COMMIT={commit()} PYTHONPATH=site:. timeout 480 python3 -m bench.gpu {what} --out results"
            for what in ("--brief", *(f"--only {name}" for name in CHECKS))
        ),
    ]
    return "\n".join(lines) + "\n"


def _install(site: Path, python: str, platforms: list[str]) -> None:
    """Install the packages for the other machine, without running anything of them."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--target", str(site)]
    command += ["--no-compile", *(word for platform in platforms for word in ("--platform", platform))]
    subprocess.run([*command, *pins()], check=True)


def write_bundle(out: Path, python: str, platforms: list[str]) -> int:
    """Write the archive; return its size in bytes."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *CODE]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.splitlines() if not name.startswith(LEFT_OUT) and (ROOT / name).is_file()]
    with tempfile.TemporaryDirectory() as folder, tarfile.open(out, "w:gz") as archive:
        (Path(folder) / "COMMANDS").write_text(commands(), encoding="utf-8")
        _install(Path(folder) / "site", python, platforms)
        for name in files:
            archive.add(ROOT / name, name)
        for name in ("COMMANDS", "site"):
            archive.add(Path(folder) / name, name)
    return out.stat().st_size


def main(argv: list[str] | None = None) -> int:
    """Write the archive, and say what to do with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-bundle.tar.gz")
    parser.add_argument("--python", default="3.12", help="the other machine's Python")
    parser.add_argument("--platform", action="append", help="tag of its wheels; default: Linux on x86-64")
    arguments = parser.parse_args(argv)
    size = write_bundle(arguments.out, arguments.python, arguments.platform or list(PLATFORMS))
    print(f"{arguments.out}: {size / 1e6:.0f} MB; unpack it on the other machine, and run the lines of COMMANDS there")
    if size > MOST_BYTES:
        sys.stderr.write(f"{arguments.out}: is above {MOST_BYTES // 1000**2} MB\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
