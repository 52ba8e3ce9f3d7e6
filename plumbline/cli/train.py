"""`plumbline train SPEC --out DIR`: run one training here, without Prefect. `--selfcheck` needs neither."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from plumbline.cli import selfcheck
from plumbline.cli.options import summary
from plumbline.environments.launch import run_training
from plumbline.environments.preflight import check_training
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.record import RunRecord, read_record
from plumbline.schema.spec import read_spec

_LINE_SECONDS = 10.0


def register(subparsers: Any) -> None:
    """Add the command `train` to the parser."""
    parser = subparsers.add_parser("train", help=summary(__doc__), description=__doc__)
    parser.add_argument("spec", type=Path, nargs="?", help="RunSpec file, written by `plumbline spec`")
    parser.add_argument("--out", type=Path, help="folder for the record")
    parser.add_argument(
        "--data", help="URL of the store with the dataset; without it, the cache must contain the dataset"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path.home() / ".cache" / "plumbline",
        help="folder of downloaded files (%(default)s)",
    )
    parser.add_argument("--platform", default="local", help="platform's name in the record (%(default)s)")
    parser.add_argument("--record-id", default="", help="default: the workload and the start of the spec's digest")
    parser.add_argument("--experiment", type=Path, help="folder of an experiment's bundle")
    parser.add_argument(
        "--processes", type=int, default=1, help="number of processes, one per device, under torchrun (default: 1)"
    )
    parser.add_argument(
        "--python", default="", help="interpreter of the training, or its environment's folder (default: this one)"
    )
    parser.add_argument("--timeout", type=float, default=None, help="seconds after which the training is stopped")
    parser.add_argument(
        "--selfcheck", action="store_true", help="instead of SPEC: train a tiny BERT here, and compare its bits"
    )
    parser.add_argument("--device", help="with --selfcheck: cpu, or cuda:N (default: the first GPU, if any)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


class _Progress:
    """Progress on stderr: a changing line on a terminal, else periodic lines."""

    def __init__(self) -> None:
        self._is_terminal, self._part, self._written_at = sys.stderr.isatty(), "", 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        """Show one progress event."""
        part = str(event.get("part", ""))
        words = event.get("words") or f"{event.get('step', 0)}/{event.get('steps', 0)}"
        text = f"{part} {words}"
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text} ")
        elif part and (part != self._part or time.monotonic() - self._written_at >= _LINE_SECONDS):
            self._part, self._written_at = part, time.monotonic()
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _summary(record: RunRecord, folder: Path) -> dict[str, Any]:
    speed, learn = record.evidence.speed, record.evidence.learn
    last = learn.evaluations[-1] if learn and learn.evaluations else None
    return {
        "record": record.record_id,
        "out": str(folder),
        "status": record.exit.status,
        "message": record.exit.message,
        "parts": list(record.spec.parts),
        "samples_per_second": speed.samples_per_second if speed else None,
        "accuracy": last.accuracy if last else None,
        "seconds": record.seconds,
    }


def _summary_of(out: Path, code: int) -> dict[str, Any]:
    """Return the record's summary, if a record exists."""
    try:
        return _summary(read_record(out), out)
    except InvalidInputError:
        if code == 0:
            raise
        return {"record": None, "out": str(out), "status": "failed", "message": "no record was written"}


def run(args: argparse.Namespace) -> int:
    """Run the training; return the trainer's exit code."""
    if args.processes < 1:
        raise ConfigurationError("must be at least 1", key="--processes")
    if args.timeout is not None and not args.timeout > 0:  # NaN is above nothing
        raise ConfigurationError(
            f"{args.timeout:g} is not positive", key="--timeout", hint="use seconds, or omit the option"
        )
    if args.selfcheck:
        return selfcheck.run(args)
    if args.spec is None or args.out is None:
        key = "SPEC" if args.spec is None else "--out"
        raise ConfigurationError("is missing", key=key, hint="plumbline train SPEC --out DIR, or --selfcheck")
    if not args.spec.is_file():
        raise ConfigurationError("no such file", where=str(args.spec), hint="write it with `plumbline spec`")
    spec = read_spec(args.spec)
    record_id = args.record_id or f"{spec.workload}-{spec.digest[:12]}"[:63]
    # The trainer checks this too, but its exit code is lost under torchrun.
    check_training(
        spec, args.out, data=args.data, cache=args.cache, platform=args.platform, record_id=record_id,
        experiment=args.experiment,
    )  # fmt: skip
    code = run_training(
        args.spec, args.out, data=args.data, cache=args.cache, platform=args.platform, record_id=record_id,
        experiment=args.experiment, on_progress=_Progress(),
        timeout_seconds=args.timeout, num_processes=args.processes, trainer=args.python,
    )  # fmt: skip
    summary = _summary_of(args.out, code)
    if args.json:
        print(json.dumps(summary))
    else:
        print(f"{summary['status']}: {args.out}")
    return code
