"""`plumbline init [FILE]`: write a commented suite that runs on this machine.

Without --platform the suite has two platforms on this machine. Questions are asked only on a terminal, for what no
option says. `plumbline run FILE --local` rehearses a suite of real platforms here, without a second file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from plumbline.cli.new_suite import NewPlatform, NewSuite, bucket_commands, suite_text
from plumbline.cli.options import check_file, say, summary
from plumbline.schema.base import Model, read_model
from plumbline.schema.errors import ConfigurationError, ExitCode, InvalidInputError
from plumbline.schema.json_schema import suite_schema
from plumbline.schema.suite import read_suite
from plumbline.schema.suite_file import did_you_mean

_SCHEMA = ".plumbline/suite.schema.json"
_SIZES = ("tiny", "mini", "small", "medium", "base", "large")
BLOCK_TYPES = (
    "apprise-url", "custom-webhook", "discord-webhook", "mattermost-webhook", "ms-teams-webhook", "opsgenie-webhook",
    "pager-duty-webhook", "sendgrid-email", "slack-webhook", "twilio-sms",
)  # fmt: skip
"""Prefect's own types of recipients; a team may have types of its own, which look like none of these."""


def register(subparsers: Any) -> None:
    """Add the command `init` to the parser."""
    parser = subparsers.add_parser("init", help=summary(__doc__), description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=Path("suite.toml"), help="default: %(default)s")
    parser.add_argument("--name", default="nightly", help="name of the suite (default: %(default)s)")
    parser.add_argument(
        "--platform", action="append", default=[], metavar="NAME=URL", dest="platforms",
        help="a platform and its bucket, such as aws=s3://acme-aws; may be repeated, the first is the reference",
    )  # fmt: skip
    parser.add_argument(
        "--accelerator", action="append", default=[], metavar="NAME=GPU", dest="accelerators",
        help="the GPU of a platform, as its driver names it, such as 'aws=NVIDIA A10G'; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--from-outputs", type=Path, metavar="FILE", dest="outputs",
        help="platforms and store as the modules in infra/ made them: what `tofu output -json suite` printed",
    )  # fmt: skip
    parser.add_argument("--store", default="", metavar="URL", help="the controller's own store; needed with --platform")
    parser.add_argument("--data", default="", metavar="SOURCE", help="your rows (default: generated reviews)")
    parser.add_argument("--text-column", default="", help="column of the text")
    parser.add_argument("--label-column", default="", help="column of the label")
    parser.add_argument(
        "--command", default="", metavar="WORDS",
        help="your own training, such as 'python train.py', whose script calls plumbline.capture; instead of --model",
    )  # fmt: skip
    parser.add_argument(
        "--file", action="append", default=[], metavar="PATH", dest="files",
        help="a file that the command needs, besides those that it names; may be repeated",
    )  # fmt: skip
    parser.add_argument("--model", default="", help=f"{', '.join(_SIZES)}, or a checkpoint (default: base; here: tiny)")
    parser.add_argument("--cron", default="", help="schedule, such as '0 2 * * *'")
    parser.add_argument("--timezone", default="", help="of the schedule (default: UTC)")
    parser.add_argument(
        "--alert", default="", metavar="BLOCK[=VARIABLE]",
        help="recipient, such as slack-webhook/ml-platform; `plumbline deploy` creates it from the variable's address",
    )  # fmt: skip
    parser.add_argument(
        "--report-url", default="", metavar="URL",
        help="where the pages are served, such as http://127.0.0.1:8765/reports (`plumbline store site --serve`)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace the file")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the suite and its JSON Schema, and print the next commands."""
    check_file(args.file, option="FILE", parents=True)
    if args.file.exists() and not args.force:
        raise ConfigurationError("exists", where=str(args.file), hint="name a different file, or pass --force")
    if sys.stdin.isatty() and not args.json and not args.outputs:
        _ask(args)
    for option, other in (("text_column", "data"), ("label_column", "data"), ("timezone", "cron")):
        if getattr(args, option) and not getattr(args, other):
            raise ConfigurationError(f"needs --{other}", where="init", key=f"--{option.replace('_', '-')}")
    if args.files and not args.command:
        raise ConfigurationError("needs --command", where="init", key="--file")
    if args.model and args.command:
        raise ConfigurationError("a command has its own model", where="init", key="--model", hint="leave it out")
    suite = _new_suite(args)
    _check_choices(suite)
    schema = args.file.parent / _SCHEMA
    text = suite_text(suite, _SCHEMA)
    _write_checked(args.file, text)
    schema.parent.mkdir(parents=True, exist_ok=True)
    schema.write_text(json.dumps(suite_schema(), indent=1) + "\n", encoding="utf-8")
    commands = [*([] if args.outputs else bucket_commands(suite)), *_next_commands(suite, args.file)]
    if args.json:
        print(json.dumps({"suite": str(args.file), "schema": str(schema), "next": commands}))
        return int(ExitCode.PASS)
    trains = suite.command or f"data {suite.data or 'generated reviews'}"
    say(f"{args.file}: {len(suite.places)} platforms, {trains}")
    for command in commands:
        say(f"  {command}")
    return int(ExitCode.PASS)


def _check_choices(suite: NewSuite) -> None:
    """Raise if the chosen data, model or recipient is unusable."""
    from plumbline.data.datasets.spec import checkpoint_folder

    if "@" not in suite.model:  # a Hub model is asked for when it is needed
        checkpoint_folder(suite.model, dict.fromkeys(_SIZES))
    kind = suite.alert.partition("/")[0]
    if kind not in BLOCK_TYPES and (hint := did_you_mean(kind, BLOCK_TYPES)):
        raise ConfigurationError(f"{kind!r} is not a type of recipient", where="init", key="--alert", hint=hint)
    if suite.data:
        _check_rows(suite)


def _check_rows(suite: NewSuite) -> None:
    """Raise `PlumblineError` unless each local file has a row and the named columns."""
    from plumbline.data.datasets.files import STORES, is_file_source, locate
    from plumbline.data.datasets.readers import read_rows
    from plumbline.data.datasets.rows import ColumnOptions

    if not is_file_source(suite.data) or suite.data.startswith(STORES):
        return  # a store's credentials, or the Hub, may be another machine's
    located = locate(suite.data, Path())
    options = ColumnOptions(suite.text_column or None, suite.label_column or None)
    files = (*located.train, *located.evaluation)
    for file in files:
        next(read_rows(file.path, options, file.name, may_be_empty=len(files) > 1), None)


def _write_checked(file: Path, text: str) -> None:
    """Validate and write the suite file; keep the old one if invalid."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_name(f".{file.name}.new")
    try:
        written.write_text(text, encoding="utf-8")
        read_suite(written)
        written.replace(file)
    except ConfigurationError as error:
        # The file is gone: name the option that its key came from.
        raise ConfigurationError(error.what, where="init", key=error.key, hint="see --help") from error
    finally:
        written.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Question:
    option: str
    text: str
    is_list: bool = False


_QUESTIONS = (
    _Question("platforms", "platforms and their buckets, such as aws=s3://acme-aws (none: here)", True),
    _Question("store", "the controller's own store, such as s3://acme-central"),
    _Question("data", "your rows: a file, folder or store URL (none: generated reviews)"),
    _Question("cron", "schedule, such as 0 2 * * * (none: on demand)"),
    _Question("alert", "recipient of alerts, such as slack-webhook/ml-platform (none: no alerts)"),
)


def _ask(args: argparse.Namespace) -> None:
    """Ask on a terminal for values without an option. Enter keeps the default."""
    for question in _QUESTIONS:
        if getattr(args, question.option) or (question.option in ("store", "cron", "alert") and not args.platforms):
            continue
        try:
            answer = input(f"{question.text}: ").strip()
        except EOFError:  # Ctrl-D
            return
        setattr(args, question.option, answer.split() if question.is_list else answer)


class _ModuleOutputs(Model):
    """Terraform module's output `suite`."""

    store: str
    platforms: dict[str, NewPlatform] = Field(min_length=1)


_Places = tuple[str, Mapping[str, NewPlatform]]
"""The controller's store, and the platforms by name."""


def _places_of_modules(args: argparse.Namespace) -> _Places:
    if args.platforms or args.accelerators or args.store:
        hint = "give no --platform, --accelerator or --store beside it"
        raise ConfigurationError("names platforms and store already", where="--from-outputs", hint=hint)
    try:
        outputs = read_model(_ModuleOutputs, args.outputs)
    except InvalidInputError as error:
        hint = "tofu output -json suite > outputs.json"
        raise ConfigurationError(error.what, where=error.where, key=error.key, hint=hint) from error
    return outputs.store, outputs.platforms


def _places_of_options(args: argparse.Namespace) -> _Places:
    urls = _pairs("--platform", args.platforms)
    gpus = _pairs("--accelerator", args.accelerators)
    for name in gpus.keys() - urls.keys():
        raise ConfigurationError(
            f"{name} is no --platform", where="--accelerator", hint="name a platform of this suite"
        )
    if urls and not args.store:
        hint = "a bucket that only the controller can write, such as --store s3://acme-plumbline-central"
        raise ConfigurationError("is needed with --platform", where="--store", hint=hint)
    return args.store, {name: NewPlatform.of_bucket(name, url, gpus.get(name, "")) for name, url in urls.items()}


def _new_suite(args: argparse.Namespace) -> NewSuite:
    store, platforms = _places_of_modules(args) if args.outputs else _places_of_options(args)
    return NewSuite(
        name=args.name, platforms=platforms, store=store, data=args.data, text_column=args.text_column,
        label_column=args.label_column, model=args.model or ("base" if platforms else "tiny"), cron=args.cron,
        timezone=args.timezone or "UTC", alert=args.alert, report_url=args.report_url, command=args.command,
        files=_shipped(args),
    )  # fmt: skip


def _shipped(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the files of a command: those that its words name, and the given ones."""
    try:
        words = shlex.split(args.command)
    except ValueError as error:
        raise ConfigurationError(f"cannot be split into words: {error}", where="init", key="--command") from error
    named = [word for word in words if not Path(word).is_absolute() and (args.file.parent / word).is_file()]
    return tuple(dict.fromkeys([*named, *args.files]))


def _pairs(option: str, values: list[str]) -> dict[str, str]:
    pairs = [cast("tuple[str, str]", tuple(value.split("=", 1))) for value in values if "=" in value]
    if len(pairs) != len(values) or not all(name and value for name, value in pairs):
        raise ConfigurationError("is not NAME=VALUE", where=option, hint="such as aws=s3://acme-plumbline-aws")
    if len(dict(pairs)) != len(pairs):
        raise ConfigurationError("names a platform twice", where=option, hint="give each platform once")
    return dict(pairs)


def _next_commands(suite: NewSuite, file: Path) -> list[str]:
    name = shlex.quote(str(file))
    variable = suite.alert.partition("=")[2]
    address = [f"export {variable}=ADDRESS"] if variable else []
    if suite.is_here:
        serve = [f"plumbline store site {name} --serve"] if suite.report_url else []
        return [*address, f"plumbline run {name}", *serve, f"plumbline baseline accept {name}"]
    return [
        *address,
        f"plumbline run {name} --local",
        f"plumbline deploy {name} --publish",
        f"plumbline doctor {name} --workers",
        f"plumbline run {name} --api",
    ]
