"""The upgrade gate on real wheels: of three changed packages, one rounds what linear layers return.

The wheels are built here, by pip; the guilty one carries a `sitecustomize`, as a patched library would change training.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from plumbline.cli.main import main

SUITE = """
name = "upgrade"
store = "file://central"
reference = "here"

[datasets.reviews]
grammar_seed = 1
train_rows = 64
evaluation_rows = 16

[workloads.reviews]
model = "tiny"
data = "reviews"
seed = 7
batch_size = 4
sequence_length = 16
[workloads.reviews.probe]
steps = 2
evaluation_rows = 8
envelope_seeds = 1

[workloads.reviews.speed]
steps = 10
precision = "fp32"

[gates]
# What slows this machine meanwhile is no drift here.
throughput_drop = 0.95

[platforms.here]
work_pool = "here"
data = "file://data"
outbox = "file://outbox"
"""

GUILTY = """
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


def build_wheel(folder, name, version, module, code):
    source = folder / f"{name}-{version}"
    source.mkdir(parents=True)
    (source / f"{module}.py").write_text(code)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n[tool.setuptools]\npy-modules = ["{module}"]\n'
    )
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True, capture_output=True, timeout=120)


@pytest.fixture
def locks(tmp_path):
    wheels = tmp_path / "wheels"
    build_wheel(wheels, "plumbline-test-a", "2.0", "plumbline_test_a", "value = 2\n")
    build_wheel(wheels, "plumbline-test-b", "2.0", "sitecustomize", GUILTY)
    build_wheel(wheels, "plumbline-test-c", "2.0", "plumbline_test_c", "value = 2\n")
    current, candidate = tmp_path / "current.txt", tmp_path / "candidate.txt"
    current.write_text("numpy==2\n")
    added = "".join(f"plumbline-test-{letter}==2.0\n" for letter in "abc")
    candidate.write_text(f"numpy==2\n{added}")
    return current, candidate, f"--find-links={wheels}"


@pytest.mark.slow
def test_the_package_that_makes_training_drift_is_named(tmp_path, locks, capsys):
    current, candidate, links = locks
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    arguments = ["upgrade", str(suite), "--current", str(current), "--candidate", str(candidate), "--json"]
    code = main([*arguments, "--work", str(tmp_path / "work"), "--pip=--no-index", f"--pip={links}"])
    said = capsys.readouterr()
    assert code == 1, said.err
    answer = json.loads(said.out)
    assert answer["verdict"] == "drift"
    assert answer["bisection"]["culprits"] == ["plumbline-test-b absent → 2.0"]
    assert answer["bisection"]["others_pass"] is True
    assert answer["causes"][0]["code"] == "precision"
    assert "speed.throughput" in {finding["check"] for finding in answer["findings"]}


def test_equal_locks_pass_without_a_training(tmp_path, capsys):
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    lock = tmp_path / "lock.txt"
    lock.write_text("numpy==2\n")
    assert main(["upgrade", str(suite), "--current", str(lock), "--candidate", str(lock)]) == 0
    assert capsys.readouterr().out == "pass\n"


def test_a_current_lock_that_is_not_installed_is_refused(tmp_path, capsys):
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    current, candidate = tmp_path / "current.txt", tmp_path / "candidate.txt"
    current.write_text("numpy==1.0\n")
    candidate.write_text("numpy==2.0\n")
    assert main(["upgrade", str(suite), "--current", str(current), "--candidate", str(candidate)]) == 2
    assert "install the current lock first" in capsys.readouterr().err
