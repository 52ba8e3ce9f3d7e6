"""Commands that run Python code without the working directory's files."""

from __future__ import annotations

from pathlib import Path

_START = "import sys; sys.path[:] = [path for path in sys.path if path]; "


def code_command(python: str | Path, code: str) -> list[str]:
    """Return `python -c CODE`, importing nothing from the working directory.

    Python 3.10 does not know PYTHONSAFEPATH.
    """
    return [str(python), "-c", f"{_START}{code}"]


def module_command(python: str | Path, module: str) -> list[str]:
    """Return `python -m MODULE`, importing nothing from the working directory."""
    return code_command(python, f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)")
