"""Wheels written by hand: pip installs them, and nothing is built."""

from __future__ import annotations

import base64
import hashlib
import zipfile


def _encoded(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def write_wheel(folder, name, version, files, requires=()):
    stem = name.replace("-", "_")
    about = f"{stem}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Project-URL: Source, https://x/{name}"]
    contents = {
        **files,
        f"{about}/METADATA": "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires), "", ""]),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{file},sha256={_encoded(text)}," for file, text in contents.items()]
    contents[f"{about}/RECORD"] = "\n".join([*rows, f"{about}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in contents.items():
            archive.writestr(file, text)
