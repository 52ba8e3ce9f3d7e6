"""Wheels written by hand.

Code that is to run at Python's start goes into a `.pth` file: a distribution's own Python may have a `sitecustomize`,
which hides every other one.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = ["ROUNDED_LINEARS", "SLOW_LINEARS", "make_wheel"]

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

SLOW_LINEARS = """
import sys


class Patch:
    def find_spec(self, name, path=None, target=None):
        if name == "plumbline.train.speed":
            import torch

            whole = torch.nn.functional.linear
            def linear(*args, **kwargs):
                for _ in range(30):
                    whole(*args, **kwargs)
                return whole(*args, **kwargs)
            torch.nn.functional.linear = linear
        return None


sys.meta_path.insert(0, Patch())
"""
"""Code that computes each linear layer 31 times, with the same result, once the trainer loads its speed part."""


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
