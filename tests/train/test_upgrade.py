"""Upgrade gate on real wheels, one of which changes the rounding of linear layers.

The guilty wheel has code that runs at Python's start, and changes training as a patched library would.
"""

from __future__ import annotations

import pytest

from plumbline.cli.main import main
from plumbline.upgrade.answer import UNTIMED
from tests.train.wheels import plant

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

[platforms.here]
work_pool = "here"
data = "file://data"
outbox = "file://outbox"
"""
CHANGES = (
    "1.0 → 2.0 changes precision: first at step 0, bert.encoder.layer.0.attention.self.query; "
    "confirmed: alone it drifts"
)
PLANTED = {
    "words, idle": [
        f"planted-words {CHANGES}, all others without it pass",
        "training opens no file of: planted-idle",
    ],
    "words, variable, idle": [
        f"planted-words {CHANGES}, all others without it pass",
        "environment.ATEN_CPU_CAPABILITY: absent → default)",
        "; because of planted-variable 1.0 → 2.0",
        "training opens no file of: planted-idle",
    ],
    "hook, part, point": [
        f"planted-{name} {CHANGES}, all changes without the culprits pass" for name in ("hook", "part", "point")
    ],
    "idle, other": [
        f"training is the same with all 2 changes; {UNTIMED}",
        "training opens no file of: planted-idle, planted-other",
    ],
}
"""By changed packages: what the answer of the gate says of each."""


@pytest.mark.long
@pytest.mark.parametrize("changed", PLANTED)
def test_what_a_package_does_without_a_module_that_training_imports_is_tried_and_named(changed, tmp_path, capsys):
    """Data of a hook, a namespace package, a hook, a variable of a `.pth`, an entry point that opens a file."""
    names = changed.split(", ")
    plant(tmp_path)
    speed = "[workloads.reviews.speed]\nsteps = 10\nchecks = false\n" if "other" in names else ""
    (tmp_path / "suite.toml").write_text(SUITE.replace("[platforms", f"{speed}[platforms"))
    for lock, version in (("current", "1.0"), ("candidate", "2.0")):
        (tmp_path / f"{lock}.txt").write_text("".join(f"planted-{name}=={version}\n" for name in names))
    code = main([
        "upgrade", str(tmp_path / "suite.toml"), "--python", str(tmp_path / "team"), "--work", str(tmp_path / "work"),
        "--current", str(tmp_path / "current.txt"), "--candidate", str(tmp_path / "candidate.txt"),
        "--allow-unhashed", "--pip=--no-index", f"--pip=--find-links={tmp_path / 'wheels'}",
    ])  # fmt: skip
    said = capsys.readouterr().out
    assert code == (0 if speed else 1), said
    missing = [line for line in PLANTED[changed] if line not in said]
    assert not missing, said
    assert said.count(" 1.0 → 2.0 changes ") == len(
        [name for name in names if name not in ("variable", "idle", "other")]
    )


def test_equal_locks_pass_without_a_training(tmp_path, capsys):
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    lock = tmp_path / "lock.txt"
    lock.write_text("numpy==2\n")
    assert main(["upgrade", str(suite), "--current", str(lock), "--candidate", str(lock)]) == 0
    said, answer, following = capsys.readouterr().out.splitlines()
    assert (said, answer) == ("pass", "  both locks pin the same packages")
    assert following.startswith("  next: use the candidate")


def test_a_current_lock_that_is_not_installed_is_refused(tmp_path, capsys):
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    current, candidate = tmp_path / "current.txt", tmp_path / "candidate.txt"
    current.write_text("numpy==1.0\n")
    candidate.write_text("numpy==2.0\n")
    assert main(["upgrade", str(suite), "--current", str(current), "--candidate", str(candidate)]) == 2
    assert "install the current lock first" in capsys.readouterr().err
