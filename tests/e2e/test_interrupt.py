"""Ctrl-C during a round ends everything."""

from __future__ import annotations

import json
import signal

import pytest

from tests.e2e.conftest import assert_nothing_left, small

pytestmark = [pytest.mark.long, pytest.mark.azurite]


@pytest.fixture(scope="module")
def suite(folder):
    # Long enough that the command shows the probe while it runs.
    return small("interrupt", folder, steps=32)


def test_ctrl_c_stops_everything(folder, start, suite):
    # `--keep` keeps what a round has left; one that is interrupted leaves nothing.
    running = start(suite, "--keep")
    running.wait_for("trains probe")
    running.process.send_signal(signal.SIGINT)
    code, out = running.end()
    assert code == 3
    assert json.loads(out)["error"]["message"] == "interrupted"
    assert "interrupted" in "".join(running.lines)
    assert_nothing_left(folder)


def test_a_second_ctrl_c_does_not_wait_for_the_round_and_is_answered_once(folder, start, suite):
    running = start(suite)
    running.wait_for("trains probe")
    running.process.send_signal(signal.SIGINT)
    running.wait_for("Ctrl-C again does not wait")
    running.process.send_signal(signal.SIGINT)
    code, out = running.end()
    assert code == 3
    assert json.loads(out)["error"]["message"] == "interrupted"
    assert_nothing_left(folder)
