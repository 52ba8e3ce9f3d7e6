"""The upgrade gate on a team's own command: of two changed packages, the one that changes its training is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.cli.main import main
from tests.train.wheels import install_first, make_wheel

SUITE = """
name = "upgrade"
store = "file://central"
reference = "here"

[workloads.mine]
command = "python train.py"
files = ["train.py"]
steps = 4

[platforms.here]
work_pool = "here"
data = "file://data"
outbox = "file://outbox"
"""
TRAIN = """
import planted_idle, planted_layers, torch
from plumbline import capture

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), planted_layers.activation(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(1)
with capture("runs", model, optimizer, steps=4) as run:
    for _ in range(6):
        loss = model(torch.randn(8, 4, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(loss=loss)
"""


def plant(folder: Path) -> None:
    """Write wheels of two versions, and a team's environment with the first."""
    for version, form in (("1.0", "none"), ("2.0", "tanh")):
        layers = f"import torch\n\n\ndef activation():\n    return torch.nn.GELU(approximate={form!r})\n"
        make_wheel(folder / "wheels", "planted-layers", version, {"planted_layers.py": layers})
        make_wheel(folder / "wheels", "planted-idle", version, {"planted_idle.py": f"value = {version!r}\n"})
    install_first(folder)
    for lock, version in (("current", "1.0"), ("candidate", "2.0")):
        (folder / f"{lock}.txt").write_text(f"planted-idle=={version}\nplanted-layers=={version}\n")


@pytest.mark.long
def test_the_package_that_changes_a_teams_training_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plant(tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "train.py").write_text(TRAIN)
    code = main([
        "upgrade", "suite.toml", "--python", "team", "--work", "work", "--current", "current.txt",
        "--candidate", "candidate.txt", "--allow-unhashed", "--pip=--no-index",
        f"--pip=--find-links={tmp_path / 'wheels'}",
    ])  # fmt: skip
    said, progress = capsys.readouterr()
    assert code == 1, progress
    assert "planted-layers 1.0 → 2.0 changes operator: first at step 0" in said
    assert "planted-idle 1.0 → 2.0 changes" not in said
