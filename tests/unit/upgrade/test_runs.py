"""A training that exceeds its time limit counts against the changes only if the current environment keeps it."""

from __future__ import annotations

import pytest

from plumbline.upgrade.environments import Environment
from plumbline.upgrade.runs import Runs
from tests.unit.report.samples import spec as sample_spec

LIMIT_SECONDS = 5.0
HANGS = "#!/bin/sh\nexec sleep 600\n"
FAILS = "#!/bin/sh\necho 'no such module' >&2\nexit 4\n"


def environment(folder, script):
    """Return an environment whose interpreter is a shell script."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    return Environment(folder, folder.name)


@pytest.mark.parametrize(("current", "is_lost"), [(HANGS, True), (FAILS, False)])
def test_a_slow_machine_is_no_fault_of_the_changes(tmp_path, current, is_lost):
    candidate = environment(tmp_path / "candidate", HANGS)
    own = environment(tmp_path / "current", current)
    run = Runs(tmp_path / "work").train(sample_spec(), candidate, tmp_path, limit=LIMIT_SECONDS, current=own)
    assert run.record is None
    assert run.is_lost is is_lost
    assert "did not end in time" in run.failure.message
