"""A module runs without the files of the folder in which the command was started."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from plumbline.environments.python_modules import module_command

ROOT = Path(__file__).parents[3]


def test_a_project_file_named_as_a_module_of_python_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "token.py").write_text("raise RuntimeError('the project file was imported')\n", encoding="utf-8")
    for command, works in (
        (module_command(sys.executable, "tokenize"), True),
        ([sys.executable, "-m", "tokenize"], False),
    ):
        done = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, check=False, timeout=60)
        assert (done.returncode == 0) == works, done.stderr


def test_product_code_starts_python_without_the_working_folder() -> None:
    for part in ("plumbline", "flows", "tasks"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if path.name != "python_modules.py" and isinstance(node, (ast.List, ast.Tuple)):
                    options = {"-m", "-c"} if isinstance(node, ast.List) else {"-m"}
                    words = {word.value for word in node.elts if isinstance(word, ast.Constant)}
                    is_free = "-I" in words or not words & options
                    assert is_free, f"{path}:{node.lineno}: use plumbline.environments.python_modules"


def test_product_code_waits_for_no_command_without_a_limit() -> None:
    for part in ("plumbline", "flows", "tasks"):
        for path in (ROOT / part).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "subprocess.run(" in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "subprocess.run":
                    is_limited = any(keyword.arg == "timeout" for keyword in node.keywords)
                    assert is_limited, f"{path}:{node.lineno}: give it a timeout and a message"
