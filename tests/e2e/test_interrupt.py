"""What ends `plumbline run` before its verdict: Ctrl-C, and a suite that `deploy` refuses."""

from __future__ import annotations

import json
import signal

import pytest

from tests.e2e.conftest import assert_nothing_left, shipped

pytestmark = [pytest.mark.long, pytest.mark.azurite]


def test_ctrl_c_stops_everything(folder, start):
    # Long enough that the command shows the probe while it runs.
    suite = shipped("local", folder, {
        "train_rows = 4096": "train_rows = 1024", "evaluation_rows = 1024": "evaluation_rows = 128",
        "steps = 12": "steps = 32",
    })  # fmt: skip
    # `--keep` keeps what a round has left; one that is interrupted leaves nothing.
    running = start(suite, "--keep")
    running.wait_for("trains probe")
    running.process.send_signal(signal.SIGINT)
    code, out = running.end()
    assert code == 3
    assert json.loads(out)["error"]["message"] == "interrupted"
    assert "interrupted" in "".join(running.lines)
    assert_nothing_left(folder)


def test_a_suite_that_deploy_refuses_is_a_wrong_configuration(folder, start):
    alert = '[[alerts]]\nblock = "apprise-url/ml"\non = ["drift"]\naddress_from = "NOT_SET"\n\n[gates]'
    suite = shipped("local", folder, {"[gates]": alert})
    code, out = start(suite).end()
    assert code == 2
    assert json.loads(out)["error"]["where"] == "deploy"
