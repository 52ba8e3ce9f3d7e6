"""This project's wheel, and environments with it that see no checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.commands import run
from tests.unit.infra.documented_commands import ROOT
from tests.unit.infra.oldest_pip import pip_environment

SOURCES = (
    "pyproject.toml", "README.md", "LICENSE", "plumbline", "flows", "tasks", "deployments", "docs", "infra", "locks",
)  # fmt: skip


def build_wheel(folder: Path) -> Path:
    """Return the wheel, built in `folder` from the files that it needs."""
    (folder / "source").mkdir()
    for name in SOURCES:
        copy = shutil.copy2 if (ROOT / name).is_file() else shutil.copytree
        ignored = (
            {}
            if (ROOT / name).is_file()
            else {"symlinks": True, "ignore": shutil.ignore_patterns("node_modules", "__pycache__")}
        )
        copy(ROOT / name, folder / "source" / name, **ignored)
    built = wheel_of(folder / "source", folder)
    shutil.rmtree(folder / "source")
    return built


def wheel_of(source: Path, folder: Path) -> Path:
    """Return the wheel that this environment builds of a source tree, written to `folder`."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    run(sys.executable, "-m", "pip", "--quiet", "wheel", *options, source, env=pip_environment())
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path, wheel: Path) -> Path:
    """Return a new environment with the wheel alone, and its folder of packages."""
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    install = ["--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], env=pip_environment(), check=True, timeout=120)
    return folder


def packages(installed: Path) -> Path:
    (folder,) = installed.glob("lib/python*/site-packages")
    return folder


def packages_here(folder: Path) -> Path:
    """Return a folder of links to this environment's packages, without this project's."""
    folder.mkdir()
    for site in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for path in site.iterdir():
            if not path.name.startswith(("plumbline", "__editable__", "pip")) and path.suffix != ".pth":
                (folder / path.name).symlink_to(path)
    return folder
