"""A training that exceeds its time limit counts against the changes only if the current environment keeps it."""

from __future__ import annotations

import json

import pytest

from plumbline.environments.opened import LOADED
from plumbline.environments.virtual_environments import Environment
from plumbline.upgrade.runs import Runs
from tests.unit.report.samples import spec as sample_spec

HANGS = "#!/bin/sh\nexec sleep 600\n"
FAILS = "#!/bin/sh\necho 'no such module' >&2\nexit 4\n"


def environment(folder, script):
    """Return an environment whose interpreter is a shell script."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    return Environment(folder, folder.name)


@pytest.mark.long
@pytest.mark.parametrize(("current", "is_lost", "limit"), [(HANGS, True, 0.5), (FAILS, False, 5.0)])
def test_a_slow_machine_is_no_fault_of_the_changes(tmp_path, current, is_lost, limit):
    candidate = environment(tmp_path / "candidate", HANGS)
    own = environment(tmp_path / "current", current)
    run = Runs(tmp_path / "work").train(sample_spec(), candidate, tmp_path, limit=limit, current=own)
    assert run.record is None
    assert run.is_lost is is_lost
    assert "did not end in time" in run.failure.message


def test_a_library_that_cannot_be_loaded_is_named_without_the_path_of_its_environment(tmp_path):
    message = f"no 'gone' ({tmp_path}/x/lib/python3.11/site-packages/torch/a.py)"
    content = {"places": [], "broken": {"name": "filelock", "exception": "ImportError", "message": message}}
    (tmp_path / "left.json").write_text(json.dumps(content))
    script = f"""#!/bin/sh
mkdir -p "${LOADED}"
cp "{tmp_path}/left.json" "${LOADED}/1.json"
echo '{tmp_path}/x: filelock: cannot be loaded' >&2
exit 2
"""
    run = Runs(tmp_path / "work").train(sample_spec(), environment(tmp_path / "x", script), tmp_path, limit=60.0)
    failure = run.failure
    assert (failure.stage, failure.library, failure.exception) == ("import", "filelock", "ImportError")
    assert failure.message == "no 'gone' (torch/a.py)"


def test_a_message_does_not_name_an_environment_that_is_deleted(tmp_path):
    script = f"#!/bin/sh\necho 'ValueError: {tmp_path}/x/share is empty' >&2\nexit 4\n"
    run = Runs(tmp_path / "work").train(sample_spec(), environment(tmp_path / "x", script), tmp_path, limit=60.0)
    assert run.failure.message == "ValueError: environment/share is empty"


def test_a_failing_trainings_own_words_are_in_its_failure_and_not_between_the_lines_of_progress(tmp_path, capsys):
    run = Runs(tmp_path / "work").train(sample_spec(), environment(tmp_path / "x", FAILS), tmp_path, limit=60.0)
    assert run.failure.message == "no such module"
    assert capsys.readouterr().err == ""
