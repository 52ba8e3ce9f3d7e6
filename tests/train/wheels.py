"""Wheels written by hand.

Code that is to run at Python's start goes into a `.pth` file: a distribution's own Python may have a `sitecustomize`,
which hides every other one.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROUNDED_LINEARS = """
import sys


class Patch:
    def find_spec(self, name, path=None, target=None):
        if name == "plumbline.train.probe":
            import torch

            whole = torch.nn.functional.linear
            def linear(*args, **kwargs):
                result = whole(*args, **kwargs)
                return result.to(torch.bfloat16).to(result.dtype)
            torch.nn.functional.linear = linear
        return None


sys.meta_path.insert(0, Patch())
"""
"""Code that rounds the results of linear layers to bfloat16, once the trainer loads its probe."""


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Write a wheel of these files into `folder`, which pip takes with --find-links."""
    stem = f"{name.replace('-', '_')}-{version}"
    about = f"{stem}.dist-info"
    files = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listed = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{about}/RECORD": listed}.items():
            wheel.writestr(path, text)


_HOST = """
import sys
from importlib.metadata import entry_points
from pathlib import Path

words = (Path(__file__).parent / "planted_words" / "vocabulary.txt").read_text()


class Patch:
    def find_spec(self, name, path=None, target=None):
        if name == "plumbline.train.probe":
            import torch
            from planted.part import value

            values = [words, value, *(point.load()() for point in entry_points(group="planted"))]
            whole = torch.nn.functional.linear
            def linear(*args, **kwargs):
                result = whole(*args, **kwargs)
                return result.to(torch.bfloat16).to(result.dtype)
            if "2.0" in values:
                torch.nn.functional.linear = linear
        return None


sys.meta_path.insert(0, Patch())
"""
"""Code of a hook that no upgrade changes: it rounds linear layers if one of the others' values is 2.0."""
_POINT = "from pathlib import Path\n\ndef read():\n    return (Path(__file__).parent / 'table.txt').read_text()\n"


def plant(folder: Path) -> None:
    """Write wheels of two versions into `folder`/wheels, and a team's environment with the first into `folder`/team.

    Of each package the second version changes training, and none is imported by it, but for `idle` and `other`.
    """
    make_wheel(folder / "wheels", "planted-host", "1.0", {"host.py": _HOST, "host.pth": "import host\n"})
    for version in ("1.0", "2.0"):
        is_new = version == "2.0"
        variable = "; os.environ['ATEN_CPU_CAPABILITY'] = 'default'" if is_new else ""
        about = f"planted_point-{version}.dist-info/entry_points.txt"
        for name, files in {
            "words": {"planted_words/vocabulary.txt": version},
            "part": {"planted/part.py": f"value = {version!r}\n"},
            "hook": {"hook.py": ROUNDED_LINEARS if is_new else "", "hook.pth": "import hook\n"},
            "variable": {"variable.pth": f"import os{variable}\n"},
            "point": {
                "planted_point/__init__.py": _POINT, "planted_point/table.txt": version,
                about: "[planted]\npoint = planted_point:read\n",
            },
            "idle": {"planted_idle.py": f"value = {version!r}\n"},
            "other": {"planted_other/data.txt": version},
        }.items():  # fmt: skip
            make_wheel(folder / "wheels", f"planted-{name}", version, files)
    install_first(folder)


def install_first(folder: Path) -> None:
    """Make a team's environment in `folder`/team, with the first versions of the wheels in `folder`/wheels."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "team")], check=True)
    site = next((folder / "team").glob("lib/python*/site-packages"))
    (site / "base.pth").write_text(sysconfig.get_path("purelib"))
    for wheel in (folder / "wheels").glob("*-1.0-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
