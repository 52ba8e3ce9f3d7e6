"""Prefect commands in the documentation, run on a stock server."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.localstack import services
from plumbline.localstack.stack import Stack
from plumbline.schema.suite import Suite
from tests.flows.small_suite import to_toml

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(
    {
        command
        for page in ("README.md", "docs/OPERATIONS.md")
        for command in re.findall(r"`(prefect (?:event|work-pool|deployment)[^`]*)`", (ROOT / page).read_text("utf-8"))
        if "--watch" not in command and "delete" not in command
    }
)


def test_the_documentation_names_the_event_with_its_resource() -> None:
    assert any(command.startswith("prefect event emit") and "--resource-id" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_works(stack: Stack, suite: Suite, tmp_path: Path, command: str) -> None:
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {**services.inherited(), **services.prefect_environment(stack.api_url, tmp_path / "home"), **path}
    (tmp_path / "suite.toml").write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    deployed = subprocess.run(
        ["plumbline", "deploy", "suite.toml"], env=environment, cwd=tmp_path, check=False, timeout=120
    )
    assert deployed.returncode == 0
    words = shlex.split(command.replace("SUITE", suite.name))
    done = subprocess.run(
        words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
