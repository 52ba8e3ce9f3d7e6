"""Container images: a base by its digest, packages from a lock, and no root user."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.own_wheel import wheel_of
from tests.unit.infra.pins import pins

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"


def instructions(path):
    """Return a Dockerfile's instructions, joined and without comments."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("name", ["worker", "controller"])
def test_an_image_has_no_base_but_one_of_a_given_digest(name):
    """A tag names a different image tomorrow: without a digest the build ends, as the argument has no default."""
    result = instructions(INFRA / name / "Dockerfile")
    images = [rest.split() for word, rest in result if word == "FROM"]
    stages = {words[2] for words in images if words[1:2] == ["AS"]}
    bases = {words[0] for words in images} - stages
    assert bases == {"python:3.12-slim-bookworm@${BASE_DIGEST}"}
    assert [rest for word, rest in result if word == "ARG" and rest.startswith("BASE_DIGEST")] == ["BASE_DIGEST"]
    # The first line may name an image too: that of the build's own program.
    assert "syntax=" not in (INFRA / name / "Dockerfile").read_text()


@pytest.mark.parametrize("name", ["worker", "controller"])
def test_dockerfiles_copy_what_exists_and_run_as_nobody_in_particular(name):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    result = instructions(INFRA / name / "Dockerfile")
    known = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in result} <= known
    assert [rest for word, rest in result if word == "USER"][-1] == "plumbline"
    for word, rest in result:
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source.split("/")[0] in allowed
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)
    installs = [rest for word, rest in result if word == "RUN" and "pip install" in rest]
    assert all("-r locks/" in rest or "--no-deps" in rest for rest in installs)
    # The package is built by the locked setuptools: the trainer's lock has it, for torch; the controller's has not.
    pinned = f"setuptools=={pins('all')['setuptools']}"
    assert pinned in (INFRA / "release" / "setuptools.txt").read_text()
    assert any(pinned in rest for rest in installs) or "setuptools" in pins(
        "trainer-cuda" if name == "worker" else name
    )
    assert "pip install setuptools " not in " ".join(installs)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["worker", "controller"])
def test_the_package_is_built_of_what_an_image_copies(name, tmp_path):
    source = tmp_path / "source"
    for *names, target in [rest.split() for word, rest in instructions(INFRA / name / "Dockerfile") if word == "COPY"]:
        for path in (ROOT / name for name in names):
            if path.is_dir():
                shutil.copytree(path, source / target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (source / target).mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, source / target)
    assert wheel_of(source, tmp_path).is_file()


def test_the_worker_s_image_finds_the_driver_and_refuses_an_old_one():
    """Google's nodes mount the driver at a path of their own, and NVIDIA's toolkit compares its CUDA elsewhere."""
    text = " ".join(rest for word, rest in instructions(INFRA / "worker" / "Dockerfile") if word == "ENV")
    cuda = pins("trainer-cuda")["nvidia-cuda-runtime"].split(".")[0]
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in text
    assert f'NVIDIA_REQUIRE_CUDA="cuda>={cuda}.0"' in text


def test_the_trainer_s_image_takes_the_trainer_s_lock_alone():
    result = instructions(INFRA / "worker" / "Dockerfile")
    worker = [index for index, (word, _) in enumerate(result) if word == "FROM"][-1]
    assert result[worker][1] == "trainer AS worker"
    text = " ".join(rest for _, rest in result[:worker])
    assert "locks/trainer-cuda.txt" in text
    assert "locks/controller.txt" not in text
