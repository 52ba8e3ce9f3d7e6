"""The command line: finds the commands, runs one, and turns an error into one clear line and its exit code.

A command is a module with `register(subparsers)` and `run(args) -> int`. The core's stand beside this file; those
that need Prefect are found by their entry point, so that the core never imports them.
"""

from __future__ import annotations

import argparse
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
from plumbline.errors import WRONG_PATH, ExitCode, PlumblineError
from plumbline.escape import printable

__all__ = ["build_parser", "main"]

_ENTRY_POINTS = "plumbline.commands"


def _loaders() -> dict[str, Callable[[], ModuleType]]:
    """How to load what stands under each command's name: the core's files, and what others offer as entry points."""
    here = {found.name.rstrip("_"): f"plumbline.cli.{found.name}" for found in iter_modules(cli.__path__)}
    elsewhere = sorted(entry_points(group=_ENTRY_POINTS), key=lambda entry: entry.name)
    core = {name: partial(import_module, path) for name, path in here.items()}
    return core | {entry.name: entry.load for entry in elsewhere}


def _load(loaders: Iterable[Callable[[], ModuleType]]) -> list[ModuleType]:
    return [module for module in (load() for load in loaders) if hasattr(module, "register")]


def _commands(argv: Sequence[str]) -> list[ModuleType]:
    """The command that `argv` asks for, which does not wait for what the others load; all of them if it asks for none.

    Without Prefect there are fewer.
    """
    loaders = _loaders()
    asked = next((word for word in argv if not word.startswith("-")), "")
    return (_load([loaders[asked]]) if asked in loaders else []) or _load(loaders.values())


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


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a command ended that has judged nothing."""

    line: str
    code: ExitCode
    where: str = ""
    key: str = ""
    hint: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the document of `--json`, with the keys of a judgement; wrong usage has no verdict."""
        verdict = {ExitCode.INCONCLUSIVE: "inconclusive", ExitCode.INVALID: "invalid"}.get(self.code)
        error = {"message": self.line, "where": self.where, "key": self.key, "hint": self.hint}
        empty: dict[str, object] = {"findings": [], "first_divergence": None, "causes": []}
        return {"verdict": verdict, **empty, "error": error, "exit_code": int(self.code)}


def _say(failure: _Failure, *, as_json: bool) -> int:
    # Text of a record may be in it: a terminal acts on no part of it.
    line = printable(failure.line).replace("\n", " ")
    print(f"plumbline: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps(failure.to_json()))
    return int(failure.code)


def _failure(error: Exception) -> _Failure:
    """Return an error as its line and its exit code: never drift's, for what failed has judged nothing."""
    if isinstance(error, PlumblineError):
        return _Failure(str(error), error.exit_code, error.where, error.key, error.hint)
    if isinstance(error, OSError):
        where = str(error.filename or "")
        code = ExitCode.USAGE if error.errno in WRONG_PATH else ExitCode.INCONCLUSIVE
        return _Failure(f"{where}: {error.strerror or error}" if where else f"{error.strerror or error}", code, where)
    if isinstance(error, MemoryError):
        return _Failure("there is not enough memory for it", ExitCode.INCONCLUSIVE)
    told = " ".join(f"{type(error).__name__}: {error}".split())
    what = f"a defect of Plumbline, not of what it was given: {told}"
    return _Failure(f"{what} (`plumbline --debug ...` shows where: please report it)", ExitCode.INCONCLUSIVE)


def _guarded(run: Callable[[], int], *, debug: bool, as_json: bool) -> int:
    try:
        return run()
    except KeyboardInterrupt:
        return _say(_Failure("interrupted", ExitCode.INCONCLUSIVE), as_json=as_json)
    except BrokenPipeError:
        # The reader of our output left (`| head`); there is nobody to tell.
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
    args = build_parser(_commands(argv)).parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.debug else logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )
    return int(args.run(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    # Asked before they are parsed: finding the commands may fail too.
    return _guarded(lambda: _run(words), debug="--debug" in words, as_json="--json" in words)


if __name__ == "__main__":
    sys.exit(main())
