"""Install the build of torch that this machine can use, before the lock file is installed; `make` runs this.

    python infra/install_torch.py [cpu | cuda | index]

cpu    locks/all.txt's version as a CPU build: what pip is set up to take, else the one of PyTorch's own index
cuda   all of locks/trainer-cuda.txt: Linux x86-64 only
index  nothing: the next step takes what the package index gives, which is CUDA on Linux

Without an argument, the environment keeps its build; a new one gets `cuda` where an NVIDIA driver answers, else `cpu`,
or `index` where no CPU build can be had. `torch-build` in the environment's folder names the build.
Only the standard library: the environment is empty.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from importlib.metadata import distributions, requires
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BUILDS = ("cpu", "cuda", "index")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
CUDA_PACKAGE = re.compile(r"^(nvidia-(?!ml-py$)|cuda-|triton$|torch$)")


def main(argv: list[str]) -> int:
    """Install, and remember the build for the next time."""
    remembered = Path(sys.prefix) / "torch-build"
    before = remembered.read_text(encoding="utf-8").strip() if remembered.is_file() else ""
    asked = argv[0] if argv else ""
    if asked not in ("", *BUILDS):
        return _fail(f"TORCH={asked}: unknown build of torch (one of {', '.join(BUILDS)})")
    build = asked or before or _build_for_this_machine()
    if build == "cuda" and not _is_linux_x86():
        return _fail("TORCH=cuda: the GPU lock is for Linux x86-64 (TORCH=index takes what the package index has)")
    if before and before != build:
        _remove_torch()
    if build == "cuda":
        _pip("install", "--quiet", "--require-hashes", "-r", str(ROOT / "locks" / "trainer-cuda.txt"))
    elif build == "cpu" and not _install_cpu():
        if asked:
            hint = "set up an index that has it for pip, or set TORCH=index for the CUDA build, 6 GB on disk"
            what = f"{CPU_INDEX} has no torch {_pinned()} for this machine, or cannot be reached"
            return _fail(f"TORCH=cpu: {what} (hint: {hint})")
        sys.stderr.write("torch: no CPU build to be had; the next step takes the CUDA build (6 GB on disk)\n")
        build = "index"
    remembered.write_text(f"{build}\n", encoding="utf-8")
    return 0


def _build_for_this_machine() -> str:
    try:
        has_gpu = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        has_gpu = False
    if has_gpu:
        return "cuda" if _is_linux_x86() else "index"
    return "cpu"


def _is_linux_x86() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _pinned() -> str:
    text = (ROOT / "locks" / "all.txt").read_text(encoding="utf-8")
    return next(line.removeprefix("torch==").split()[0] for line in text.splitlines() if line.startswith("torch=="))


def _install_cpu() -> bool:
    """Install the CPU build, unless pip takes one anyway; return whether the environment will have one."""
    if is_cpu_build(_plan()):
        return True
    sys.stderr.write("torch: the package index has the CUDA build; trying PyTorch's own index for the CPU build\n")
    # An installed CUDA build has the same version, and pip would keep it.
    options = (
        "--quiet",
        "--no-deps",
        "--force-reinstall",
        "--retries",
        "1",
        "--timeout",
        "15",
        "--index-url",
        CPU_INDEX,
    )
    done = subprocess.run([*PIP, "install", *options, f"torch=={_pinned()}"], check=False, timeout=1800)
    # A company's `find-links` is asked too, and may have the CUDA build.
    return done.returncode == 0 and is_cpu_build({"install": []})


def _plan() -> dict[str, object]:
    """Return pip's plan for the pinned version: metadata only, nothing is installed."""
    command = [*PIP, "install", "--quiet", "--dry-run", "--no-deps", "--report", "-", f"torch=={_pinned()}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def is_cpu_build(plan: dict[str, object]) -> bool:
    """Return whether pip's plan leads to a torch that asks for no NVIDIA package.

    A plan that installs nothing keeps the installed torch.
    """
    chosen = plan.get("install")
    if not isinstance(chosen, list):
        return False
    asked = [line for item in chosen for line in item["metadata"].get("requires_dist", ())]
    if not chosen:
        asked = requires("torch") or []
    # macOS and Windows wheels name NVIDIA's packages too, for Linux alone.
    return sys.platform != "linux" or not any(line.startswith(("nvidia-", "cuda-")) for line in asked)


def _remove_torch() -> None:
    names = {str(one.metadata["Name"]).lower() for one in distributions()}
    if unwanted := sorted(name for name in names if CUDA_PACKAGE.match(name)):
        _pip("uninstall", "--quiet", "--yes", *unwanted)


def _pip(*arguments: str) -> None:
    subprocess.run([*PIP, *arguments], check=True)


def _fail(line: str) -> int:
    sys.stderr.write(f"plumbline: {line}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
