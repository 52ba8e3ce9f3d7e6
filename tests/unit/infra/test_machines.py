"""Machines of the clouds: each row of the table trains, and pages and suites name its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plumbline.night.doctor.place import is_driver_new_enough
from plumbline.schema.fingerprint import (
    Expected,
    Machine,
    accelerator_names,
    accelerator_text,
    machine_mismatches,
    machine_table,
)
from plumbline.schema.suite import read_suite

ROOT = Path(__file__).resolve().parents[3]
LOCK = (ROOT / "locks" / "trainer-cuda.txt").read_text("utf-8")
CUDA = re.search(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+)", LOCK, re.MULTILINE)
MACHINES = machine_table().machines


def faults(machine: Machine) -> Iterator[str]:
    """Yield each reason why a machine would not train."""
    if not is_driver_new_enough(machine.driver, machine.cuda):
        yield f"driver {machine.driver} is too old for CUDA {machine.cuda}"
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    least = re.search(r'requires-python = ">=3\.(\d+)', project)
    assert least is not None
    if int(machine.python.partition(".")[2]) < int(least[1]):
        yield f"Python {machine.python} is too old"
    if not re.search(r"20\d{6}", machine.image):
        yield f"image {machine.image} has no date"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.type)
def test_each_machine_trains(machine: Machine) -> None:
    assert list(faults(machine)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"driver": "570.211.01"}, "driver"), ({"python": "3.10"}, "Python"),
        ({"image": "microsoft-dsvm:ubuntu-hpc:2404:latest"}, "date"),
    ],
)  # fmt: skip
def test_a_machine_that_would_not_train_is_found(change: dict[str, str], words: str) -> None:
    (fault,) = faults(MACHINES[0].replace(**change))
    assert words in fault


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp"])
def test_each_cloud_has_a_machine_for_the_lock_which_its_module_and_the_suite_name(cloud: str) -> None:
    assert CUDA is not None
    first = next(machine for machine in MACHINES if machine.cloud == cloud)
    assert first.cuda == CUDA[1]
    module = "".join(path.read_text("utf-8") for path in (ROOT / "infra" / cloud).glob("*.tf"))
    # Google's nodes have an image of its own.
    for value in (first.type, first.gpu, first.image) if cloud != "gcp" else (first.type, first.gpu):
        assert f'"{value}"' in module
    suite = read_suite(ROOT / "deployments" / "suites" / "cross-cloud.toml")
    assert first.gpu in accelerator_names(suite.platforms[cloud].accelerator)


def test_a_family_is_named_in_the_table_and_is_no_prefix() -> None:
    assert accelerator_names("A10") == ("NVIDIA A10", "NVIDIA A10-24Q")
    assert accelerator_names("NVIDIA A10") == ("NVIDIA A10",)
    assert accelerator_text("A10", accelerator_names("A10")) == "A10 (NVIDIA A10 or NVIDIA A10-24Q)"
    assert accelerator_text("NVIDIA A10G", accelerator_names("NVIDIA A10G")) == "NVIDIA A10G"


def test_a_trainer_is_handed_the_names_that_its_python_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Expected.model_validate_json(Expected(accelerator="A10").with_names().model_dump_json())
    monkeypatch.setattr("plumbline.schema.fingerprint.accelerator_names", pytest.fail)
    for gpu, found in (("NVIDIA A10-24Q", ()), ("NVIDIA A10G", ("NVIDIA A10G",))):
        fingerprint = SimpleNamespace(gpus=(SimpleNamespace(name=gpu),), num_processes=1)
        assert tuple(one.found for one in machine_mismatches(expected, cast("Any", fingerprint))) == found
