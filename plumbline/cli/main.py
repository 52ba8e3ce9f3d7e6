"""Command line entry point: runs commands, converts errors to exit codes.

A command is a module with `register(subparsers)` and `run(args) -> int`. The core's commands are in this package; those
that need Prefect are found by their entry points, so that the core never imports them.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType

from plumbline import __version__, cli
from plumbline.cli.completion import SHELLS, PrintCompletion
from plumbline.cli.options import QUIET, say
from plumbline.local.signals import terminations_interrupt
from plumbline.schema.errors import WRONG_PATH, ExitCode, PlumblineError
from plumbline.schema.extras import is_optional, missing_package
from plumbline.schema.variables import clean_variables

_ENTRY_POINTS = "plumbline.commands"
_ANYWHERE = ("--debug", "--quiet", "--verbose")
"""Options of all commands, which may stand before or after the command."""


def _loaders() -> dict[str, Callable[[], ModuleType]]:
    """Return a loader for each command name: core modules and entry points."""
    modules = (module.name for module in iter_modules(cli.__path__) if not module.ispkg)
    here = {name.rstrip("_"): f"plumbline.cli.{name}" for name in modules}
    elsewhere = sorted(entry_points(group=_ENTRY_POINTS), key=lambda entry: entry.name)
    core = {name: partial(import_module, path) for name, path in here.items()}
    return core | {entry.name: entry.load for entry in elsewhere}


def _load(loaders: Iterable[Callable[[], ModuleType]]) -> list[ModuleType]:
    return [module for module in (load() for load in loaders) if hasattr(module, "register")]


def _commands(argv: Sequence[str]) -> list[ModuleType]:
    """Load only the requested command's module, or all modules."""
    loaders = _loaders()
    asked = next((word for word in argv if not word.startswith("-")), "")
    return (_load([loaders[asked]]) if asked in loaders else []) or all_commands()


def all_commands() -> list[ModuleType]:
    """Load all commands' modules, except those with missing packages."""
    loaders = _loaders()
    found = []
    for load in loaders.values():
        try:
            found += _load([load])
        except ImportError as error:
            if not is_optional(error):
                raise
    return found


def build_parser(
    modules: Sequence[ModuleType], kind: type[argparse.ArgumentParser] = argparse.ArgumentParser
) -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = kind(
        prog="plumbline",
        description="Check that training is the same on every cloud, and name the cause of a difference.",
        epilog="Exit codes: 0 pass, 1 drift, 2 wrong usage or configuration, 3 inconclusive, 4 invalid.",
    )
    parser.add_argument("--version", action="version", version=f"plumbline {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error, and debug logs")
    parser.add_argument("--verbose", action="store_true", help="show the logs of libraries, such as each request")
    parser.add_argument("--quiet", action="store_true", help="show no progress; answers, notes and errors stay")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        action=PrintCompletion,
        const=lambda kind: build_parser(all_commands(), kind),
        help="print a shell's completion script, and exit",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in modules:
        module.register(subparsers)
    return parser


@dataclass(frozen=True, slots=True)
class _Failure:
    """Failed command without a verdict: message and exit code."""

    line: str
    code: ExitCode
    where: str = ""
    key: str = ""
    hint: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the `--json` document, with the keys of a judgement."""
        verdict = {ExitCode.INCONCLUSIVE: "inconclusive", ExitCode.INVALID: "invalid"}.get(self.code)
        error = {"message": self.line, "where": self.where, "key": self.key, "hint": self.hint}
        empty: dict[str, object] = {"findings": [], "first_divergence": None, "causes": []}
        return {"verdict": verdict, **empty, "error": error, "exit_code": int(self.code)}


def _say(failure: _Failure, *, as_json: bool) -> int:
    say(f"plumbline: {failure.line}", to_stderr=True)
    if as_json:
        print(json.dumps(failure.to_json()))
    return int(failure.code)


def _failure(error: Exception) -> _Failure:
    """Convert an error to a message and an exit code, never drift's."""
    if isinstance(error, ImportError):
        error = missing_package(error) or error
    if isinstance(error, PlumblineError):
        return _Failure(str(error), error.exit_code, error.where, error.key, error.hint)
    if isinstance(error, OSError):
        where = str(error.filename or "")
        code = ExitCode.USAGE if error.errno in WRONG_PATH else ExitCode.INCONCLUSIVE
        return _Failure(f"{where}: {error.strerror or error}" if where else f"{error.strerror or error}", code, where)
    if isinstance(error, MemoryError):
        return _Failure("out of memory", ExitCode.INCONCLUSIVE)
    message = " ".join(f"{type(error).__name__}: {error}".split())
    text = f"a defect of Plumbline, not of its input: {message}"
    return _Failure(f"{text} (`plumbline --debug ...` shows where: please report it)", ExitCode.INCONCLUSIVE)


def _guarded(run: Callable[[], int], *, debug: bool, as_json: bool) -> int:
    try:
        with terminations_interrupt():
            return run()
    except KeyboardInterrupt:
        return _say(_Failure("interrupted", ExitCode.INCONCLUSIVE), as_json=as_json)
    except BrokenPipeError:
        # The reader of the output has closed it (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.USAGE)
    except SystemExit as error:
        if as_json and error.code == ExitCode.USAGE:
            print(json.dumps(_Failure("wrong usage: stderr has the usage", ExitCode.USAGE).to_json()))
        raise
    except Exception as error:  # noqa: BLE001 - Python's own answer would be a traceback, and the code of a drift
        if debug:
            traceback.print_exc()
        return _say(_failure(error), as_json=as_json)


def _run(argv: Sequence[str]) -> int:
    general = [word for word in argv if word in _ANYWHERE]
    args = build_parser(_commands(argv)).parse_args([*general, *(word for word in argv if word not in _ANYWHERE)])
    level = logging.DEBUG if args.debug else logging.INFO if args.verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(message)s")
    if args.quiet:
        os.environ.update({QUIET: "1"})  # a command that starts others, such as `run`, hands it on
    return int(args.run(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code."""
    text = sys.argv[1:] if argv is None else list(argv)
    clean_variables()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name from a record must not end the command where a terminal has few characters.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Read before parsing, as finding the commands may fail too.
    return _guarded(lambda: _run(text), debug="--debug" in text, as_json="--json" in text)


if __name__ == "__main__":
    sys.exit(main())
