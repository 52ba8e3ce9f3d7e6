"""A team's own training through its nights: it passes, drifts on one platform, is named, heard of, and passes again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plumbline.data.stores import open_store
from plumbline.local import services
from plumbline.night.central import CentralStore
from tests.commands import run_plumbline
from tests.e2e.conftest import Round, assert_nothing_left, begin
from tests.flows.webhook_server import Receiver, receiver

pytestmark = [pytest.mark.e2e, pytest.mark.long]
TRAIN = """
import os
from pathlib import Path

import torch
from torch import nn

from plumbline import capture

torch.manual_seed(int(os.environ.get("PLUMBLINE_SEED", "0")))
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
if Path(os.environ.get("FAULT", "none")).exists():
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 6))
data = torch.Generator().manual_seed(1)
with capture("runs/mine", model, optimizer, steps=7) as run:
    for _ in range(30):
        values = torch.randn(16, 8, generator=data)
        labels = (values[:, 0] > 0).long()
        loss = nn.functional.cross_entropy(model(values), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        run.step({"labels": labels}, loss)
print("trained to", loss.item())
"""


@pytest.fixture(scope="module")
def webhook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def suite(folder: Path) -> Path:
    """Return the suite that `plumbline init` makes of a folder with nothing but the script."""
    (folder / "train.py").write_text(TRAIN)
    done = run_plumbline("init", "--command", "python train.py", "--name", "mine", cwd=folder)
    assert "plumbline run suite.toml" in done.stdout
    path = folder / "suite.toml"
    events = '["drift", "invalid", "unavailable", "recovered"]'
    path.write_text(
        path.read_text()
        + f'\n[local.two]\nenvironment = {{ FAULT = "{folder}/fault" }}\n'
        + f'[[alerts]]\non = {events}\nblock = "apprise-url/mine"\naddress_from = "HOOK"\n'
    )
    return path


@pytest.fixture(scope="module")
def kept(folder: Path, suite: Path, webhook: Receiver) -> Iterator[Round]:
    running = begin(folder, suite, "--keep", environment={"HOOK": webhook.url})
    yield running
    running.stop()
    assert_nothing_left(folder)


def night(folder: Path, kept: Round, suite: Path, webhook: Receiver) -> tuple[int, dict]:
    prefect = services.prefect_environment(kept.api_url, folder / "home", kept.login)
    running = begin(folder, suite, "--api", environment={**prefect, "HOOK": webhook.url})
    try:
        return running.verdict()
    finally:
        running.stop()


def test_nights_of_a_command_pass_drift_with_a_confirmed_cause_and_pass_again(
    folder: Path, kept: Round, suite: Path, webhook: Receiver, tmp_path: Path
) -> None:
    kept.wait_for("the stack stays up until Ctrl-C")
    verdict = json.loads(kept.process.stdout.readline())
    assert verdict["verdict"] == "pass", verdict
    (name,) = verdict["platforms"]["two"]["records"]
    loaded = CentralStore(open_store(f"file://{folder}/.plumbline/central")).get_record(name, tmp_path / name)
    record = loaded.record
    assert (record.spec.workload, record.spec.steps, record.evidence.probe.num_steps) == ("mine", 20, 20)
    assert "trained to" in (loaded.folder / "output.txt").read_text()
    run_plumbline("baseline", "accept", suite, cwd=folder)
    (folder / "fault").touch()
    code, verdict = night(folder, kept, suite, webhook)
    assert (code, verdict["verdict"]) == (1, "drift")
    (cause,) = verdict["platforms"]["two"]["causes"]
    assert (cause["code"], cause["sure"]) == ("schedule", "confirmed")
    assert verdict["platforms"]["two"]["first_divergence"]["step"] == 0
    assert verdict["platforms"]["one"]["verdict"] == "pass"
    assert [each for each in webhook.got if "drift" in json.dumps(each)]
    report = max((folder / ".plumbline/central/rounds/mine").rglob("report.html"), key=os.path.getmtime).read_text()
    assert "learning rate" in report
    assert "trained to" in report
    (folder / "fault").unlink()
    code, verdict = night(folder, kept, suite, webhook)
    assert (code, verdict["verdict"]) == (0, "pass")
