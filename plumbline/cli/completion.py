"""`plumbline --print-completion SHELL`: print the script with which a shell completes commands, options and files.

For bash, the script's place is `~/.local/share/bash-completion/completions/plumbline`; for zsh, a file `_plumbline`
of a folder in `$fpath`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")


class PrintCompletion(argparse.Action):
    """Option that prints a shell's completion script and exits, like `--version`.

    Its `const` is a function that builds the complete parser, of a given class of parsers.
    """

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, _option: str | None = None) -> None:
        """Print the script, and exit."""
        print(_script(self.const, shell))
        parser.exit()


def _script(build: Callable[[type[argparse.ArgumentParser]], argparse.ArgumentParser], shell: str) -> str:
    """Return a completion script for all commands with installed packages."""
    import shtab

    class FileParser(argparse.ArgumentParser):
        """Argument parser that marks file arguments for completion."""

        def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
            """Add an argument, marked for file completion if it takes a file."""
            action = super().add_argument(*names, **options)
            if options.get("type") is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            return action

    return str(shtab.complete(build(FileParser), shell=shell))
