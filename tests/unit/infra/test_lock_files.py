"""Lock files: consistent with each other and with the project, hashed, and made by one script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from plumbline.night.doctor.place import least_driver
from tests.unit.infra.pins import pins, requirements

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"


def required(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"][extra]
    return {re.match(r"[a-zA-Z0-9_.-]+", line)[0].lower() for line in wanted}


@pytest.mark.parametrize(("extra", "without"), [("trainer", "prefect"), ("controller", "torch")])
def test_the_small_lock_files_are_cut_from_the_large_one(extra, without):
    everything, own = pins("all"), pins(extra)
    assert {name: version for name, version in own.items() if everything.get(name) != version} == {}
    assert required(extra) <= own.keys()
    assert without not in own
    assert not any("+" in version for version in own.values())


@pytest.mark.parametrize("name", ["controller", "trainer-cuda"])
def test_locks_of_machines_have_a_hash_for_every_package(name):
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    blocks = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert {re.split(r"[\[=]", block)[0] for block in blocks} == requirements(name).keys()
    for block in blocks:
        assert re.match(r"[a-z0-9-]+(\[[a-z0-9, ]+])?==\S+ .*\\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+$", block), (
            block[:200]
        )


def test_the_gpu_lock_pins_cuda_and_states_the_driver_that_it_needs():
    everything, trainer, cuda = pins("all"), pins("trainer"), pins("trainer-cuda")
    assert {name: everything[name] for name in trainer} == {name: cuda.get(name) for name in trainer}
    nvidia = {name for name in cuda if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"}
    assert set(cuda) - set(trainer) == {*nvidia, "triton"}
    assert len(nvidia) >= 15
    linux = {"sys_platform": "linux", "platform_machine": "x86_64"}
    laptop = {"sys_platform": "darwin", "platform_machine": "arm64"}
    for requirement in requirements("trainer-cuda").values():
        assert requirement.marker.evaluate(linux)
        assert not requirement.marker.evaluate(laptop)
    runtime = cuda["nvidia-cuda-runtime"]
    second = (ROOT / "locks" / "trainer-cuda.txt").read_text().splitlines()[1]
    assert f"CUDA {runtime} needs the NVIDIA driver {least_driver(runtime)} or newer" in second


@pytest.mark.parametrize("full", ["3.11.0", "3.12.0", "3.13.0", "3.14.0"])
def test_the_lock_pins_what_every_python_needs(full):
    pinned = pins("all")
    place = {"python_full_version": full, "python_version": full.rpartition(".")[0], "extra": ""}
    installed = {
        canonicalize_name(distribution.metadata["Name"]): distribution for distribution in metadata.distributions()
    }
    asked = [Requirement(text) for name in pinned if name in installed for text in installed[name].requires or ()]
    needed = {canonicalize_name(item.name) for item in asked if item.marker is None or item.marker.evaluate(place)}
    # A CUDA build of torch needs CUDA's packages too: the GPU lock pins them.
    assert sorted(needed - pinned.keys() - pins("trainer-cuda").keys()) == []


RESOLVER = """#!/bin/sh
# Stands for pip-compile and for uv, which need the index: answers with the committed lock, as a machine with a local
# torch would. uv is called in a project of its own, whose systems tell which of the trainer's locks is asked for.
while [ $# -gt 1 ]; do
    case $1 in
        --output-file) out=$2 ;;
        --extra) extra=$2 ;;
    esac
    shift
done
if [ "$extra" = trainer ] && grep -q "platform_machine == 'x86_64'" pyproject.toml; then extra=trainer-cuda; fi
sed -e "1{/^#/d}" -e "2{/^#/d}" "$LOCKS/$extra.txt" | sed -E "s/^(torch==[0-9.]+)$/\\1+cpu/" > "$out"
[ -z "$EDIT" ] || sed -i "$EDIT" "$out"
"""


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        ("", 0, ""),
        ("s/^numpy==.*/numpy==1.0/", 1, "locks/trainer.txt"),
        ("s/^prefect==.*/prefect==1.0/", 1, "locks/controller.txt"),
        ("s/^nvidia-cublas==.*/nvidia-cublas==1.0/", 1, "locks/trainer-cuda.txt"),
        ("s/sha256:.*/sha256:0/", 0, ""),
    ],
)
def test_the_lock_script_checks_without_writing(tmp_path, edit, code, words):
    resolver = tmp_path / "resolver"
    resolver.write_text(RESOLVER)
    resolver.chmod(0o755)
    before = {path: path.read_bytes() for path in (ROOT / "locks").glob("*.txt")}
    given = {"PIP_COMPILE": resolver, "UV": resolver, "PYTHON": sys.executable, "LOCKS": ROOT / "locks", "EDIT": edit}
    environment = {**os.environ, **{key: str(value) for key, value in given.items()}}
    done = subprocess.run(
        ["bash", str(INFRA / "lock.sh"), "--check"], env=environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert {path: path.read_bytes() for path in (ROOT / "locks").glob("*.txt")} == before
