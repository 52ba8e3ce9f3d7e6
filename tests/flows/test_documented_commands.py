"""Prefect commands in the documentation, run on a stock server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.local import services
from plumbline.schema.suite import Suite
from tests.flows.conftest import Server
from tests.flows.small_suite import to_toml
from tests.unit.infra.documented_commands import ROOT, commands

# What a sentence names without its arguments, what waits for a round, and what deletes.
LEFT_OUT = ("--watch", "delete", "work-pool update")
COMMANDS = list(
    dict.fromkeys(
        command.text
        for command in commands()
        if command.words[0] == "prefect" and command.words[1] in ("event", "work-pool", "deployment")
        if not any(words in command.text for words in LEFT_OUT)
    )
)


def test_the_documentation_names_the_event_with_its_resource() -> None:
    assert any(command.startswith("prefect event emit") and "--resource-id" in command for command in COMMANDS)


@pytest.mark.long
def test_the_documented_commands_work(server: Server, suite: Suite, tmp_path: Path) -> None:
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {
        **services.inherited(),
        **services.prefect_environment(server.api_url, tmp_path / "home", server.login),
        **path,
    }
    (tmp_path / "suite.toml").write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    template = json.loads((ROOT / "infra/kubernetes/gpu-job-template.json").read_text("utf-8"))
    template["variables"]["properties"]["image"]["default"] = "registry/plumbline@sha256:digest"
    (tmp_path / "template.json").write_text(json.dumps(template), encoding="utf-8")
    for command in ("plumbline deploy suite.toml", *COMMANDS):
        words = [word.replace("SUITE", suite.name) for word in command.split()]
        done = subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
