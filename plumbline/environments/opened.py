"""Recorder of the files that this process opens, from Python's start.

An environment of an upgrade imports this module before the start-up hooks of its packages. Standard library alone.
"""

import os
import sys

LOADED = "PLUMBLINE_LOADED_FOLDER"
"""Variable with the folder in which a process leaves what it opened; without it nothing is noted."""
START = ("!plumbline.pth", "import plumbline.environments.opened\n")
"""Name and content of the file by which Python imports this module; of `.pth` files the first by name runs first."""
files: set[str] = set()


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        files.add(os.fsdecode(arguments[0]))


if LOADED in os.environ:
    sys.addaudithook(_note)
