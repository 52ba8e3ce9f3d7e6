"""Record of the packages that a process actually loaded, for upgrades.

The parent names a folder in `LOADED`. Each process that ends leaves one JSON file there: the modules it imported, the
files that Python opened and the shared libraries that it mapped, as the first two parts of their path below
`site-packages`, and the library that could not be loaded. What a library in C opens stays unseen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from pydantic import Field

from plumbline.environments import opened
from plumbline.environments.opened import LOADED
from plumbline.schema.base import Model, read_model

_SITE = ("site-packages", "dist-packages")
_PREFIXES = {sys.prefix, os.path.realpath(sys.prefix)}
_PARTS = 2
_METADATA = (".dist-info", ".egg-info")
"""Ends of folders that every training reads, of all packages: their versions are part of its fingerprint."""


class BrokenLibrary(Model):
    """Library that could not be loaded."""

    name: str = Field(max_length=200)
    """Its module or folder below `site-packages`."""
    exception: str = Field(max_length=200)
    """The exception's type; empty if the trainer refused its version."""
    message: str = Field(max_length=2000)


class LoadedFiles(Model):
    """Package folders that a process loaded code from, such as `torch/nn`."""

    places: tuple[str, ...] = Field(max_length=200_000)
    broken: BrokenLibrary | None = None


def place_of(path: str) -> str:
    """Return the first two path components below `site-packages`, or below the environment's prefix."""
    return "/".join(PurePosixPath(path).parts[:_PARTS])


def _files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield file
    yield from list(opened.files)
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # not Linux: libraries without a module stay unknown
    yield from (line[line.index("/") :] for line in lines if "/" in line)


def _below_site(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        parts = PurePosixPath(file).parts
        found = next((place for place, part in enumerate(parts) if part in _SITE), None)
        if found is not None and len(parts) > found + 1 and not parts[found + 1].endswith(_METADATA):
            yield "/".join(parts[found + 1 :])
        elif found is None:
            yield from (file[len(prefix) + 1 :] for prefix in _PREFIXES if file.startswith(f"{prefix}/"))


def write_loaded(environment: Mapping[str, str], broken: BrokenLibrary | None = None) -> None:
    """Write which package folders this process loaded, and any library that failed.

    Leave nothing where the parent named no folder.
    """
    folder = environment.get(LOADED)
    if folder:
        places = sorted({place_of(path) for path in _below_site(_files())})
        path = Path(folder) / f"{os.getpid()}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"places": places, "broken": broken.to_json() if broken else None}
        path.write_text(json.dumps(content), encoding="utf-8")


def loaded_places(folder: Path) -> frozenset[str]:
    """Return all package folders that a training's processes reported in `folder`."""
    return frozenset(place for path in folder.glob("*.json") for place in read_model(LoadedFiles, path).places)


def broken_library(folder: Path) -> BrokenLibrary | None:
    """Return the library that a training's processes failed to load, or `None`."""
    files = (read_model(LoadedFiles, path) for path in sorted(folder.glob("*.json")))
    return next((file.broken for file in files if file.broken is not None), None)
