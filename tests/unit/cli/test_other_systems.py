"""Python of Windows, as far as hidden modules show it: no `fcntl`, `pwd` and `resource`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CODE = Path(__file__).parents[3]
HIDDEN = ("fcntl", "grp", "pwd", "resource", "termios")
COMMAND = f"""
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.modules.update(dict.fromkeys({HIDDEN}))
from plumbline.cli.main import main
sys.exit(main())
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", COMMAND, str(CODE), *arguments]
    return subprocess.run(command, cwd=CODE, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("command", ["", "compare", "explain", "history", "report"])
def test_what_reads_given_records_starts_anywhere(command: str) -> None:
    done = run(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_given_records_are_compared_anywhere() -> None:
    records = CODE / "tests" / "unit" / "judge" / "h100"
    done = run("compare", str(records / "cpu"), str(records / "tf32"))
    assert (done.returncode, "precision" in done.stdout, done.stderr) == (1, True, "")


def test_a_store_in_a_folder_is_refused_in_one_line() -> None:
    code = "import sys; sys.modules['fcntl'] = None; from plumbline.data.file_lock import lock; lock(0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=CODE, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("ConfigurationError: locking a file needs Linux (hint: on Windows: WSL 2)\n")


def test_a_module_of_one_system_is_imported_in_one_place_and_never_at_the_top() -> None:
    places: Counter[str] = Counter()
    for path in (path for name in ("plumbline", "flows", "tasks") for path in (CODE / name).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [
            name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
            if name.name in HIDDEN
        ]  # fmt: skip
        places.update(found)
        top = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
        assert not top & set(HIDDEN), path
    assert places == {"pwd": 1, "resource": 1}  # and `fcntl` by its name, in `data/file_lock.py`
