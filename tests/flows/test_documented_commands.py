"""Prefect commands in the documentation, run on a stock server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plumbline.schema.suite import Suite
from tests.commands import run
from tests.flows.conftest import Server, gpu_template
from tests.flows.small_suite import write_suite
from tests.unit.infra.documented_commands import commands

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
    environment = server.environment(tmp_path / "home")
    write_suite(suite, tmp_path)
    (tmp_path / "template.json").write_text(json.dumps(gpu_template("registry/plumbline@sha256:digest")))
    for command in ("plumbline deploy suite.toml", *COMMANDS):
        run(*command.replace("SUITE", suite.name).split(), env=environment, cwd=tmp_path)
