"""Command `python -m plumbline.train SPEC OUT`: run one training in this process."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from plumbline.environments.interpreter import UnfitLibraryError, check_libraries
from plumbline.environments.loaded import BrokenLibrary, write_loaded
from plumbline.environments.parent_watch import watch_parent
from plumbline.environments.preflight import check_training
from plumbline.schema.base import read_model
from plumbline.schema.errors import ConfigurationError, ExitCode, PlumblineError
from plumbline.schema.fingerprint import Expected
from plumbline.schema.spec import read_spec
from plumbline.schema.variables import NONCE, variable


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m plumbline.train", description="Train, and write a record.")
    parser.add_argument("spec", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--data", help="URL of the store with the dataset; without it, the cache must contain the dataset"
    )
    parser.add_argument("--manifest", default="", help="digest of the staged manifest, if files were staged beforehand")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "plumbline")
    parser.add_argument("--platform", default="local")
    parser.add_argument("--record-id", default="")
    parser.add_argument("--round-id", default="")
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--expected", default="", help="machine that the suite expects, as JSON")
    parser.add_argument("--experiment", type=Path, help="folder of an experiment's bundle")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser.parse_args(argv)


_LOAD_ERRORS = (ImportError, OSError, RuntimeError, AttributeError)


class _UnloadableError(ConfigurationError):
    """A missing, broken or incompatible library."""

    library: BrokenLibrary


def _unloadable(error: Exception) -> _UnloadableError:
    """Return a one-line error for a missing, broken or incompatible library."""
    # A module of an installed library that is missing is a broken library.
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) and "." not in (error.name or "") else ""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    name, trace = "", error.__traceback__
    while trace is not None:
        folders = Path(trace.tb_frame.f_code.co_filename).parts
        if "site-packages" in folders and folders[folders.index("site-packages") + 1] != "plumbline":
            name = folders[folders.index("site-packages") + 1]
        trace = trace.tb_next
    found = _UnloadableError(
        "is not installed" if missing else f"cannot be loaded: {said}",
        where=sys.prefix,
        key=missing or name or "a library",
        hint=f"install it{'' if missing else ' again, for this machine'}; versions in locks/trainer.txt work together",
    )
    found.library = BrokenLibrary(
        name=(name or missing).removesuffix(".py")[:200], exception=type(error).__name__[:200], message=said[:2000]
    )
    return found


def _train(arguments: argparse.Namespace, stop: threading.Event) -> None:
    notes = check_libraries()
    if variable("RANK", "0") == "0":
        sys.stderr.writelines(f"{note}\n" for note in notes)
    spec = read_spec(arguments.spec)
    record_id = arguments.record_id or f"{spec.workload}-{spec.digest[:12]}"[:63]
    check_training(
        spec, arguments.out, data=arguments.data, cache=arguments.cache, platform=arguments.platform,
        record_id=record_id, experiment=arguments.experiment,
    )  # fmt: skip
    expected = read_model(Expected, arguments.expected.encode(), where="--expected") if arguments.expected else None
    began = time.perf_counter()
    # Imports leave a million objects and no garbage: searching them, here and at the exit, took over a second.
    gc.disable()
    try:
        from plumbline.train.job import TrainJob, run_job
    except _LOAD_ERRORS as error:
        raise _unloadable(error) from error
    finally:
        gc.freeze()
        gc.enable()

    job = TrainJob(
        spec=spec, out=arguments.out, data=arguments.data, cache=arguments.cache, platform=arguments.platform,
        record_id=record_id, round_id=arguments.round_id, experiment=arguments.experiment,
        import_seconds=time.perf_counter() - began, attempt=arguments.attempt, nonce=variable(NONCE),
        expected=expected, manifest=arguments.manifest,
    )  # fmt: skip
    run_job(job, stop)


def first_step() -> int:
    """Run the self-check's first step, to report broken libraries early."""
    try:
        check_libraries()
        from plumbline.train.selfcheck import main as selfcheck
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return int(ExitCode.USAGE)
    except _LOAD_ERRORS as error:
        sys.stderr.write(f"{_unloadable(error)}\n")
        return int(ExitCode.USAGE)
    return selfcheck(["--first-step"])


def main(argv: list[str] | None = None) -> int:
    """Run one training; return the exit code."""
    arguments = _arguments(argv)
    watch_parent(os.environ)
    stop = threading.Event()
    broken: BrokenLibrary | None = None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _train(arguments, stop)
    except PlumblineError as error:
        broken = error.library if isinstance(error, _UnloadableError) else None
        if isinstance(error, UnfitLibraryError):
            broken = BrokenLibrary(name=error.library, exception="", message=error.what)
        if arguments.debug:
            traceback.print_exc()
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    finally:
        write_loaded(os.environ, broken)
    return int(ExitCode.PASS)


if __name__ == "__main__":
    sys.exit(main())
