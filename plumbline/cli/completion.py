"""`plumbline completion SHELL`: print the script with which a shell completes commands, options and files.

For bash: `plumbline completion bash > ~/.local/share/bash-completion/completions/plumbline`. For zsh: the same with
`zsh`, into a file `_plumbline` of a folder in `$fpath`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from plumbline.errors import ExitCode

_SHELLS = ("bash", "zsh", "tcsh")


def register(subparsers: Any) -> None:
    """Add `completion`."""
    parser = subparsers.add_parser("completion", help="print a shell's completion script", description=__doc__)
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from plumbline.cli.main import all_commands, build_parser

    class FileParser(argparse.ArgumentParser):
        """Parser that marks the arguments that are files."""

        def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
            """Add an argument, for which the shell may complete a file's name."""
            action = super().add_argument(*names, **options)
            if options.get("type") is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            return action

    print(shtab.complete(build_parser(all_commands(), FileParser), shell=args.shell))
    return int(ExitCode.PASS)
