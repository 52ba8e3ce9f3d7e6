"""What is loaded when, and without a search for garbage, which goes on afterwards whatever happened."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys

import pytest

from plumbline.loading import without_collection


def test_garbage_is_looked_for_again_afterwards() -> None:
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_also_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), without_collection():
        importlib.import_module("there_is_no_such_module")
    assert gc.isenabled()


@pytest.mark.parametrize("flow", ["regression", "training"])
def test_no_training_waits_for_what_the_judge_loads(flow: str) -> None:
    late = ["boto3", "numpy", "plumbline.judge", "plumbline.records", "pyarrow", "torch"]
    code = f"import sys, flows.{flow}; print(*(set({late!r}) & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
