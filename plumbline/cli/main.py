"""The command line: finds the commands, runs one, and turns an error into one clear line and its exit code.

A command is a module with `register(subparsers)` and `run(args) -> int`. The core's stand beside this file; those
that need Prefect are found by their entry point, so that the core never imports them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType

from plumbline import __version__, cli
from plumbline.errors import ExitCode, PlumblineError

__all__ = ["build_parser", "main"]

_ENTRY_POINTS = "plumbline.commands"


def _commands() -> list[ModuleType]:
    """The command modules: the core's by their file, the others by their entry point; without Prefect, no others."""
    here = [import_module(f"plumbline.cli.{found.name}") for found in iter_modules(cli.__path__)]
    elsewhere = sorted(entry_points(group=_ENTRY_POINTS), key=lambda entry: entry.name)
    return [module for module in here if hasattr(module, "register")] + [entry.load() for entry in elsewhere]


def build_parser(modules: Sequence[ModuleType]) -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="plumbline",
        description="Proves that training is the same on every cloud, and names what made it differ.",
        epilog="Exit codes: 0 pass, 1 drift, 2 wrong usage or configuration, 3 inconclusive, 4 invalid.",
    )
    parser.add_argument("--version", action="version", version=f"plumbline {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error, and debug logs")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in modules:
        module.register(subparsers)
    return parser


def _report(error: PlumblineError) -> int:
    print(f"plumbline: {error}", file=sys.stderr)
    return int(error.exit_code)


def _guarded(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    try:
        return run(args)
    except PlumblineError as error:
        if args.debug:
            raise
        return _report(error)
    except KeyboardInterrupt:
        print("plumbline: interrupted", file=sys.stderr)
        return int(ExitCode.INCONCLUSIVE)
    except BrokenPipeError:
        # The reader of our output left (`| head`); there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.USAGE)
    except OSError as error:
        if args.debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"plumbline: {where}{error.strerror or error}", file=sys.stderr)
        return int(ExitCode.INCONCLUSIVE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    args = build_parser(_commands()).parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.debug else logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )
    run: Callable[[argparse.Namespace], int] = args.run
    return _guarded(run, args)


if __name__ == "__main__":
    sys.exit(main())
