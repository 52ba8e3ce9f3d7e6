"""Temporary folders, and those that a killed process left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plumbline.data.staging.scratch import scratch_folder

HOLDER = """
import sys
from pathlib import Path
from plumbline.data.staging.scratch import scratch_folder
with scratch_folder("held-", Path(sys.argv[1])) as folder:
    (folder / "data").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_goes_with_its_block(tmp_path: Path) -> None:
    with scratch_folder(parent=tmp_path) as folder, scratch_folder(parent=tmp_path) as other:
        assert folder != other
        assert folder.name.startswith("plumbline-")
        assert folder.is_dir(), "a second folder of this process removed it"
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_process_is_removed_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "of-somebody").mkdir()
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as alive,
    ):
        assert killed.stdout is not None
        assert alive.stdout is not None
        left, held = (Path(process.stdout.readline().strip()) for process in (killed, alive) if process.stdout)
        killed.kill()
        killed.wait()
        assert (left / "data").is_file(), "nothing else removes it"
        with scratch_folder(parent=tmp_path) as folder:
            assert {path.name for path in tmp_path.iterdir()} == {folder.name, held.name, "of-somebody"}
            assert (held / "data").is_file()
        alive.kill()
