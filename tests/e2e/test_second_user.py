"""Two users of one machine, each with a stack of their own and one temporary folder for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import AS_NOBODY
from tests.e2e import user_stack
from tests.e2e.conftest import ROOT
from tests.flows.small_suite import small_suite, write_suite

pytestmark = [pytest.mark.long, pytest.mark.second_user]


@pytest.fixture
def machine() -> Iterator[Path]:
    """Return a folder that both users can enter: pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="two-users-"))
    folder.chmod(0o755)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def online(machine: Path, name: str, command: list[str]) -> Iterator[None]:
    """Start a stack, and wait until a run can start in each of its work pools."""
    (home := machine / name).mkdir()
    # Of the servers, Prefect's alone is asked for; each worker takes seconds to start.
    suite = small_suite(home, name, ("onprem",))
    write_suite(suite, home)
    if command:
        shutil.chown(home, "nobody")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(machine / "tmp")}
    with subprocess.Popen(
        [*command, sys.executable, user_stack.__file__, "suite.toml", ".state"], cwd=home, text=True,
        env={**environment, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as stack:  # fmt: skip
        try:
            said = []
            for line in stack.stdout:
                said.append(line)
                if line == "online\n":
                    break
            assert said[-1:] == ["online\n"], "".join(said)
            yield
        finally:
            stack.stdin.close()
            stack.stdout.read()
            assert stack.wait(120) == 0


def test_the_workers_of_a_second_user_start_beside_those_of_the_first(machine: Path) -> None:
    """Prefect's worker keeps a folder for all users in the temporary folder, closed by the first one's umask.

    A person who makes that folder first stops nobody.
    """
    storage = machine / "tmp" / "runner_storage"
    with online(machine, "first", []):
        assert not storage.exists()
        storage.touch()
        with online(machine, "second", AS_NOBODY):
            pass
    assert list((machine / "tmp").iterdir()) == [storage]
