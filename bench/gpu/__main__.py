"""All checks that need a GPU, in one command, `make gpu`.

    PYTHONPATH=.:.venv/peers python -m bench.gpu [--brief] [--only CHECK ...] [--out bench/results/gpu]

Each check writes its raw result to `OUT/CHECK.json`, and says what was asked and whether it holds. Exit code 0: all of
it holds; 1: something does not; 2: there is no GPU, or wrong usage; 3: a check could not be run. `--device cpu --size
tiny` walks through all of it without a GPU; what is asked of a GPU is not judged there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from bench.faults.results import machine
from bench.gpu.checks import BRIEF, CHECKS
from bench.gpu.place import ROOT, Found, Place
from plumbline.schema.errors import ExitCode


def run_check(name: str, place: Place) -> Found:
    """Run one check, and write its result."""
    began = time.perf_counter()
    try:
        result = CHECKS[name](place)
    except Exception as error:  # noqa: BLE001 - time on a GPU is dear: one check that breaks takes no other along
        traceback.print_exc()
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        result = {"asked": {}, "holds": None, "could_not_be_run": said}
    known = {"check": name, "commit": os.environ.get("COMMIT", ""), "machine": machine()}
    result = {**known, "took_seconds": time.perf_counter() - began, **result}
    place.out.mkdir(parents=True, exist_ok=True)
    (place.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    words = {True: "holds", False: "does not hold", None: "not judged here"}
    state = result.get("could_not_be_run") or words[result["holds"]]
    print(f"{name}: {state} {result['asked'] or ''} ({result['took_seconds']:.0f} s)", flush=True)
    return result


def exit_code(found: list[Found]) -> ExitCode:
    """Return the exit code of these results."""
    if any(item["holds"] is False for item in found):
        return ExitCode.DRIFT
    return ExitCode.INCONCLUSIVE if any("could_not_be_run" in item for item in found) else ExitCode.PASS


def main(argv: list[str] | None = None) -> int:
    """Run the requested checks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CHECKS), help="only this check; may be repeated")
    parser.add_argument("--brief", action="store_true", help="what eight minutes settle, in order of worth")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", default="", help="a small model in place of base and large")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "gpu")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("no GPU: torch sees none here (run it where nvidia-smi lists one; --device cpu --size tiny)\n")
        return ExitCode.USAGE
    with tempfile.TemporaryDirectory() as folder:
        place = Place(arguments.device, arguments.size, Path(folder), arguments.out)
        names = arguments.only or (BRIEF if arguments.brief else CHECKS)
        return exit_code([run_check(name, place) for name in names])


if __name__ == "__main__":
    sys.exit(main())
