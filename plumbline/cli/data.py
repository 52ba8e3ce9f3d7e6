"""`plumbline data build/import/push/verify`: make, publish and check a dataset."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plumbline.cli.options import at_least, check_folder, say, summary
from plumbline.data.datasets import build_dataset, publish, verify_dataset
from plumbline.data.datasets.classes import class_notes
from plumbline.data.datasets.receipts import receipt_lines
from plumbline.data.datasets.spec import dataset_source, dataset_task
from plumbline.data.staging.cache import Cache
from plumbline.data.stores import open_store
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.manifest import Manifest
from plumbline.schema.suite import DatasetSource, read_suite
from plumbline.schema.suite_file import did_you_mean, suggest_or_list
from plumbline.schema.task import TASKS

_MOST_CLASSES = 20
_SIZES = {
    "train_rows": (8, "maximum number of training rows (default: all)"),
    "evaluation_rows": (8, "maximum number of evaluation rows (default: %(default)s)"),
    "rows_per_shard": (1, "rows in each Parquet file (default: %(default)s)"),
    "vocab_size": (64, "vocabulary of the trained tokenizer (default: %(default)s)"),
}
"""Minimum and help of each size of a dataset; `DatasetSource` has the defaults."""


def register(subparsers: Any) -> None:
    """Add the command `data` and its subcommands."""
    parser = subparsers.add_parser("data", help=summary(__doc__), description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, add, run in (
        ("build", _add_build, _build),
        ("import", _add_import, _import),
        ("push", _add_push, _push),
        ("verify", _add_verify, _verify),
    ):
        command = commands.add_parser(name, help=_help(run.__doc__), description=run.__doc__)
        add(command)
        command.add_argument("--json", action="store_true", help="print one JSON document on stdout")
        command.set_defaults(run=run)


def _help(docstring: str | None) -> str:
    """Convert a docstring's first line to a short help text."""
    line = (docstring or "").strip().rstrip(".")
    return line[:1].lower() + line[1:]


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", type=Path, help="the suite whose [datasets] are built")
    parser.add_argument("names", nargs="*", metavar="DATASET", help="build only these datasets")
    parser.add_argument("--out", type=Path, required=True, help="parent folder of the datasets' own folders")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help="a file, folder, glob or store URL of CSV, TSV, JSON, JSONL or Parquet; or a Hugging Face dataset",
    )
    parser.add_argument("--name", required=True, help="the dataset's name in suites")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the dataset")
    parser.add_argument(
        "--task",
        choices=tuple(TASKS),
        default="sequence-classification",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--text-column", help="column of the text (default: the column with a usual name, such as `text`)"
    )
    parser.add_argument("--pair-column", help="column of the second text, for pairs of sentences")
    parser.add_argument(
        "--label-column", help="column of the label (default: the column with a usual name, such as `label`)"
    )
    parser.add_argument(
        "--labels", metavar="A,B,...", help="the classes in order; also FIRST..LAST, for numbers that are classes"
    )
    parser.add_argument(
        "--no-header", action="store_true", help="the first line is a row; name the columns by number: 1, 2, ..."
    )
    parser.add_argument("--evaluation", metavar="SOURCE", help="files for evaluation, separate from the training files")
    parser.add_argument("--config", help="configuration of a Hugging Face dataset; also NAME:CONFIG")
    parser.add_argument("--split", help="Hugging Face split to train on (default: train)")
    parser.add_argument("--evaluation-split", help="Hugging Face split to evaluate on (default: validation, else test)")
    parser.add_argument("--revision", help="Hugging Face branch, tag or commit; the manifest keeps the commit")
    defaults = DatasetSource(path="rows.csv")
    for key, (_, text) in _SIZES.items():
        parser.add_argument(f"--{key.replace('_', '-')}", type=int, default=getattr(defaults, key), help=text)
    parser.add_argument(
        "--tokenizer", help="a tokenizer.json, vocab.txt or a folder with one of them, instead of a trained one"
    )
    parser.add_argument("--cased", action="store_true", help="train a case-sensitive tokenizer")


def _add_where(parser: argparse.ArgumentParser, option: str) -> None:
    parser.add_argument(option, action="append", default=[], metavar="URL", help="a data URL; may be repeated")
    parser.add_argument("--suite", type=Path, help="use the data URLs of all platforms of this suite")
    parser.add_argument(
        "--platform", action="append", default=[], help="with --suite: only this platform; may be repeated"
    )


def _add_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of a built dataset")
    _add_where(parser, "--to")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the dataset's name")
    _add_where(parser, "--at")
    parser.add_argument("--cache", type=Path, help="check a local cache instead of a store, and remove damaged objects")


def _build(args: argparse.Namespace) -> int:
    """Build a suite's datasets."""
    suite = read_suite(args.suite)
    unknown = [name for name in args.names if name not in suite.datasets]
    if unknown or not suite.datasets:
        text = f"the dataset {unknown[0]!r} does not exist" if unknown else "no dataset to build"
        hint = did_you_mean(unknown[0], suite.datasets) if unknown else ""
        raise ConfigurationError(text, where=str(args.suite), key="datasets", hint=hint or "add [datasets.NAME]")
    for name in args.names or suite.datasets:
        check_folder(args.out / name)
    built = {
        name: build_dataset(
            dataset_source(suite, name, str(args.suite)), name, dataset_task(suite, name), args.out / name
        )
        for name in args.names or suite.datasets
    }
    return _print_built(args, {name: (manifest, args.out / name) for name, manifest in built.items()})


def _import(args: argparse.Namespace) -> int:
    """Make a dataset from a user's rows."""
    check_folder(args.out)
    sizes = {
        key: at_least(f"--{key.replace('_', '-')}", getattr(args, key), least) for key, (least, _) in _SIZES.items()
    }
    source = DatasetSource(
        path=args.source,
        **sizes,
        lowercase=not args.cased,
        tokenizer=args.tokenizer,
        text_column=args.text_column,
        pair_column=args.pair_column,
        label_column=args.label_column,
        header=not args.no_header,
        labels=_labels(args.labels),
        evaluation_path=args.evaluation,
        config=args.config,
        split=args.split,
        evaluation_split=args.evaluation_split,
        revision=args.revision,
    )
    manifest = build_dataset(source, args.name, args.task, args.out)
    return _print_built(args, {args.name: (manifest, args.out)})


def _labels(text: str | None) -> tuple[str, ...] | None:
    """Parse classes from `A,B,...` or `FIRST..LAST`."""
    if text is None:
        return None
    numbers = re.fullmatch(r"(-?\d{1,4})\.\.(-?\d{1,4})", text.strip())
    if numbers:
        names = [str(number) for number in range(int(numbers[1]), int(numbers[2]) + 1)]
    else:
        names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or len(set(names)) != len(names) or "" in names:
        hint = "two or more different classes: negative,positive or 1..5"
        raise ConfigurationError(f"{text[:80]!r} is not a list of classes", key="--labels", hint=hint)
    return tuple(names)


def _push(args: argparse.Namespace) -> int:
    """Send a built dataset to every platform's store."""
    answer = {}
    for place, url in _places(args, args.to, "--to").items():
        done = publish(args.folder, open_store(url), progress=_progress(place))
        answer[place] = {
            "url": url, "manifest": done.manifest_sha256, "written": done.written, "skipped": done.skipped,
            "bytes": done.bytes_written, "replaced": done.replaced,
        }  # fmt: skip
    return _print_result(args, answer)


def _verify(args: argparse.Namespace) -> int:
    """Verify a published dataset byte by byte, or a local cache."""
    if args.cache:
        return _verify_cache(args)
    if not args.name:
        raise ConfigurationError("name the dataset, or use --cache FOLDER", where="data verify")
    answer: dict[str, Any] = {}
    manifests: dict[str, Manifest] = {}
    for place, url in _places(args, args.at, "--at").items():
        verified = verify_dataset(open_store(url), args.name)
        manifests[place] = verified.manifest
        problems = [f"{url}/{args.name}/{key}: {problem}" for key, problem in verified.problems.items()]
        answer[place] = {
            "url": url, "manifest": verified.manifest.digest, "files": len(verified.manifest.files),
            "bytes": verified.bytes_read, "problems": problems,
        }  # fmt: skip
    bad = [problem for entry in answer.values() for problem in entry["problems"]]
    if len({entry["manifest"] for entry in answer.values()}) > 1:
        bad.append(f"the platforms contain different datasets named {args.name!r}")
        first = next(iter(manifests))
        bad += [
            f"{place}: differs from {first}: {difference}"
            for place in manifests
            for difference in manifests[place].differences(manifests[first])
        ]
    _print_result(args, answer)
    return _complain(bad)


def _verify_cache(args: argparse.Namespace) -> int:
    if not args.cache.is_dir():
        raise ConfigurationError("no such folder", where=str(args.cache), key="--cache")
    wrong = Cache(args.cache).verify()
    _print_result(args, {str(args.cache): {"removed": wrong}})
    return _complain([f"{args.cache}: {sha256} had wrong bytes and was removed" for sha256 in wrong])


def _complain(problems: list[str]) -> int:
    for problem in problems:
        say(f"plumbline: {problem}", to_stderr=True)
    return int(ExitCode.INVALID if problems else ExitCode.PASS)


def _places(args: argparse.Namespace, urls: list[str], option: str) -> dict[str, str]:
    """Map platform names, or URLs, to data URLs."""
    if bool(urls) == bool(args.suite):
        raise ConfigurationError(f"use either {option} URL or --suite SUITE", where="data")
    if urls:
        return {url: url for url in urls}
    platforms = read_suite(args.suite).platforms
    for name in args.platform:
        if name not in platforms:
            hint = suggest_or_list(name, list(platforms))
            raise ConfigurationError(
                f"the platform {name!r} does not exist", where=str(args.suite), key="platforms", hint=hint
            )
    return {name: platforms[name].data for name in args.platform or platforms}


def _progress(place: str) -> Callable[[int, int, str], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int, key: str) -> None:
        end = "\n" if done == total else ""
        print(f"\r\033[K{place}: {done} of {total} files, {key}", end=end, file=sys.stderr, flush=True)

    return show


def _summary(manifest: Manifest, folder: Path) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "manifest": manifest.digest,
        "content": manifest.content_sha256,
        "source": manifest.source,
        "train_rows": sum(shard.num_rows for shard in manifest.train),
        "evaluation_rows": sum(shard.num_rows for shard in manifest.evaluation),
        "receipt": None if manifest.receipt is None else manifest.receipt.to_json(),
        "labels": manifest.num_labels,
        "classes": {entry.name: [entry.train_rows, entry.evaluation_rows] for entry in manifest.classes},
        "notes": list(class_notes(manifest.classes)),
        "vocab_size": manifest.vocab_size,
        "bytes": sum(file.size for file in manifest.files),
        "best_accuracy": manifest.best_accuracy,
    }


def _print_built(args: argparse.Namespace, built: dict[str, tuple[Manifest, Path]]) -> int:
    """Print each built dataset, and receipts of imports."""
    code = _print_result(args, {name: _summary(*entry) for name, entry in built.items()})
    for name, (manifest, _) in built.items():
        for line in [] if args.json else receipt_lines(manifest):
            say(f"{name}: {line}")
    return code


def _print_result(args: argparse.Namespace, answer: dict[str, Any]) -> int:
    if args.json:
        print(json.dumps(answer))
        return int(ExitCode.PASS)
    for name, entry in answer.items():
        say(name)
        for key, value in entry.items():
            if key == "classes":
                _print_classes(value)
            elif value is not None and not isinstance(value, list | dict):
                say(f"  {key.replace('_', ' '):16} {value:,}" if isinstance(value, int) else f"  {key:16} {value}")
        for note in entry.get("notes", ()):
            say(f"note: {name}: {note}", to_stderr=True)
    return int(ExitCode.PASS)


def _print_classes(classes: dict[str, list[int]]) -> None:
    """Print the classes with their row counts."""
    for number, (name, (train, evaluation)) in enumerate(classes.items()):
        if number == _MOST_CLASSES:
            say(f"  {'':16} and {len(classes) - number} more in the manifest")
            return
        say(f"  {'classes' if not number else '':16} {number} = {name} ({train:,} train, {evaluation:,} evaluation)")
