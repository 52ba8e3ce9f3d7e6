"""What a process loaded code from is left for its parent, and only where the parent asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from plumbline.environments.loaded import loaded_places, place_of, write_loaded
from plumbline.environments.opened import LOADED
from plumbline.schema.errors import InvalidInputError


def test_modules_and_libraries_are_named_by_two_parts_of_their_path(tmp_path):
    import numpy as np  # noqa: F401, PLC0415 - loaded on purpose

    write_loaded({})
    assert loaded_places(tmp_path) == frozenset()
    write_loaded({LOADED: str(tmp_path)})
    places = loaded_places(tmp_path)
    assert "numpy/__init__.py" in places
    assert "numpy/_core" in places
    assert not any(place.startswith("/") for place in places)
    assert place_of("nvidia/cublas/lib/libcublas.so.13") == "nvidia/cublas"


def test_a_file_that_is_none_of_ours_is_refused(tmp_path):
    (tmp_path / "1.json").write_text('{"places": 3}')
    with pytest.raises(InvalidInputError, match="places"):
        loaded_places(tmp_path)


def test_a_data_file_that_a_process_opens_is_named_and_the_metadata_of_all_packages_is_not(tmp_path):
    site = tmp_path / "site-packages"
    for name in ("words/vocabulary.txt", "words-1.0.dist-info/METADATA"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("Name: words\n")
    reads = f"import plumbline.environments.loaded as l, os, pathlib; s = pathlib.Path({str(site)!r})"
    reads += "; [path.read_text() for path in s.rglob('*') if path.is_file()]; l.write_loaded(os.environ)"
    environment = {**os.environ, LOADED: str(tmp_path / "out")}
    subprocess.run([sys.executable, "-c", reads], check=True, env=environment)
    places = loaded_places(tmp_path / "out")
    assert "words/vocabulary.txt" in places
    assert not any("dist-info" in place for place in places)
