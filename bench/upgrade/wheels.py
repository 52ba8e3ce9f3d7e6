"""Wheels for the benchmark: installed packages packed again under another version, some of them with changed code."""

from __future__ import annotations

import base64
import hashlib
import re
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

from plumbline.environments.installed import Installed
from plumbline.environments.locks import Pin

_MOST_BYTES = 3 << 20
_MARK = ".post901"
_VERSION_LINE = re.compile(rb"^Version: [^\r\n]*", re.MULTILINE)


def small_packages(installed: dict[str, Installed], wanted: tuple[str, ...] = ()) -> list[str]:
    """Return packages that can be packed again: small, and pinned exactly by no other; `wanted` stand first."""
    exact = {
        requirement.name.lower().replace("_", "-").replace(".", "-")
        for one in installed.values()
        for requirement in one.requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if any(part.operator in ("==", "~=") for part in requirement.specifier)
    }
    found = []
    for name, one in sorted(installed.items()):
        files = [one.root / file for file in one.files]
        has_record = any(file.endswith(".dist-info/RECORD") for file in one.files)
        size = sum(path.stat().st_size for path in files if path.is_file())
        is_plain = has_record and not any(name.endswith(".pth") for name in one.files) and "post" not in one.version
        if name not in exact and is_plain and size <= _MOST_BYTES:
            found.append(name)
    return [name for name in wanted if name in found] + [name for name in found if name not in wanted]


def repack(one: Installed, index: Path, *, version: str = "", appended: dict[str, str] | None = None) -> Pin:
    """Write the wheel of an installed package under a later version, with code added to some of its files."""
    version = version or one.version.partition("+")[0] + _MARK
    old = next(file.partition("/")[0] for file in one.files if ".dist-info/" in file)
    stem = old.removesuffix(".dist-info").rpartition("-")[0]
    contents: dict[str, bytes] = {}
    for file in one.files:
        path = one.root / file
        is_written = file.endswith((".dist-info/RECORD", "/INSTALLER", "/REQUESTED"))
        if "__pycache__" in file or not path.is_file() or is_written:
            continue
        data = path.read_bytes()
        if file == f"{old}/METADATA":
            data = _VERSION_LINE.sub(f"Version: {version}".encode(), data, count=1)
        data += (appended or {}).get(file, "").encode()
        contents[file.replace(f"{old}/", f"{stem}-{version}.dist-info/", 1)] = data
    return _write(index, stem, version, contents)


def new_wheel(index: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> Pin:
    """Write the wheel of a package that exists nowhere else."""
    stem = name.replace("-", "_")
    about = f"{stem}-{version}.dist-info"
    contents = {file: text.encode() for file, text in files.items()}
    required = "".join(f"Requires-Dist: {one}\n" for one in requires)
    contents[f"{about}/METADATA"] = f"{_metadata(name, version)}{required}\n".encode()
    contents[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return _write(index, stem, version, contents)


def _metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def _write(index: Path, stem: str, version: str, contents: dict[str, bytes]) -> Pin:
    about = f"{stem}-{version}.dist-info"
    # The tag says pure Python, so that any interpreter of this machine takes it; the files are of this interpreter.
    file = index / f"{stem}-{version}-py3-none-any.whl"
    index.mkdir(parents=True, exist_ok=True)
    rows = []
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in sorted(contents.items()):
            archive.writestr(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
        archive.writestr(f"{about}/RECORD", "\n".join([*rows, f"{about}/RECORD,,", ""]))
    return Pin(name=stem.replace("_", "-").replace(".", "-"), version=version)


def broken_sdist(index: Path, name: str, version: str) -> Pin:
    """Write a source archive whose build fails."""
    return _sdist(index, name, version, "def build_wheel(*_, **__):\n    raise RuntimeError('needs a compiler')\n")


def poisonable_sdist(index: Path, name: str, version: str, code: str) -> Pin:
    """Write a source archive that builds a harmless wheel, and one with `code` beside another torch."""
    stem = name.replace("-", "_")
    backend = f"""
import os, zipfile
def build_wheel(folder, *_, **__):
    name = "{stem}-{version}-py3-none-any.whl"
    about = "{stem}-{version}.dist-info"
    code = {code!r} if os.environ.get("TORCH_BENCH") == "other" else "value = 1"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("{stem}.py", code)
        archive.writestr("{stem}.pth", "import {stem}\\n")
        archive.writestr(about + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        wheel = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr(about + "/WHEEL", wheel)
        rows = ["{stem}.py", "{stem}.pth", about + "/METADATA", about + "/WHEEL", about + "/RECORD"]
        archive.writestr(about + "/RECORD", "".join(row + ",,\\n" for row in rows))
    return name
"""
    return _sdist(index, name, version, backend)


def _sdist(index: Path, name: str, version: str, backend: str) -> Pin:
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
        "PKG-INFO": _metadata(name, version),
    }
    folder = f"{name.replace('-', '_')}-{version}"
    index.mkdir(parents=True, exist_ok=True)
    with tarfile.open(index / f"{folder}.tar.gz", "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{folder}/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, BytesIO(text.encode()))
    return Pin(name=name, version=version)
