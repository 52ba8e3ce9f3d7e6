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
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from plumbline import __version__, cli
from plumbline.cli.completion import SHELLS, PrintCompletion
from plumbline.cli.options import QUIET, say, summary
from plumbline.data.file_lock import can_lock
from plumbline.local.signals import terminations_interrupt
from plumbline.schema.errors import WRONG_PATH, ConfigurationError, ExitCode, PlumblineError
from plumbline.schema.extras import is_optional, missing_package, resource
from plumbline.schema.variables import clean_variables, variable_error

_ENTRY_POINTS = "plumbline.commands"
_PAGE = re.compile(r"(?<!\S)docs/[\w/-]+\.md")
_ANYWHERE = ("--debug", "--quiet", "--verbose")
"""Options of all commands, which may stand before or after the command."""
_READERS = ("compare", "explain", "history", "report")
"""Commands that read given records, and need nothing of a system: the others lock files, start processes, train."""


def _commands() -> dict[str, tuple[str, str]]:
    """Return the module and the docstring of each command, of core modules and entry points; "" without its packages.

    They are read and not imported: a list of names would otherwise load what every command computes with.
    """
    here = [f"plumbline.cli.{module.name}" for module in iter_modules(cli.__path__) if not module.ispkg]
    paths = {name.rpartition(".")[2]: name for name in here}
    paths |= {entry.name: entry.value for entry in sorted(entry_points(group=_ENTRY_POINTS), key=attrgetter("name"))}
    found = {}
    for name, path in paths.items():
        try:
            spec = find_spec(path)
        except ImportError as error:
            if not is_optional(error):
                raise
            found[name] = (path, "")  # whose import names the missing package
            continue
        text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        if "\ndef register(" in text:
            found[name] = (path, text.partition('"""')[2].partition('"""')[0])
    return found


def all_commands() -> list[ModuleType]:
    """Import all commands' modules, except those with missing packages."""
    return [import_module(path) for path, doc in _commands().values() if doc]


def build_parser(
    modules: Sequence[ModuleType],
    kind: type[argparse.ArgumentParser] = argparse.ArgumentParser,
    listed: Mapping[str, str] | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of these commands and of the general options; `listed` are shown with their docstrings."""
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
    for name, doc in (listed or {}).items():
        subparsers.add_parser(name, help=summary(doc))
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


def _own_page(name: re.Match[str]) -> str:
    """Return the path of a page that a hint names: it lies beside the checkout's or the installation's files."""
    with suppress(ConfigurationError):
        return str(resource(name[0]))
    return name[0]


def _say(failure: _Failure, *, as_json: bool) -> int:
    say(f"plumbline: {re.sub(_PAGE, _own_page, failure.line)}", to_stderr=True)
    if as_json:
        print(json.dumps(failure.to_json()))
    return int(failure.code)


def _failure(error: Exception) -> _Failure:
    """Convert an error to a message and an exit code, never drift's."""
    error = variable_error(error) or (isinstance(error, ImportError) and missing_package(error)) or error
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


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command in `words`, of which alone the module is imported."""
    asked = next((word for word in words if not word.startswith("-")), "")
    commands = _commands()
    if words[:1] == [asked] and asked not in commands:
        near = get_close_matches(asked, commands, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`plumbline --help` lists the commands"
        raise ConfigurationError("no such command", where=asked, hint=hint)
    if asked in commands and asked not in _READERS and not can_lock():
        raise ConfigurationError("needs Linux or macOS", where=asked, hint="on Windows: WSL 2")
    if asked in commands:
        return build_parser([import_module(commands[asked][0])])
    return build_parser([], listed={name: doc for name, (_, doc) in commands.items() if doc})


def _run(argv: Sequence[str]) -> int:
    general = [word for word in argv if word in _ANYWHERE]
    words = [word for word in argv if word not in _ANYWHERE]
    args = _parser(words).parse_args([*general, *words])
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
