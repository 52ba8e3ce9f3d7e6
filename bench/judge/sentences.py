"""Count the unit tests that fail if one sentence of `report/sentences.toml` is reworded.

`python -m bench.judge.sentences --out bench/results/sentences.json`: first all sentences are reworded at once, which
gives every test that reads any; then random sentences one at a time, with these tests alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from string import Formatter
from typing import Any

from plumbline.report import sentences

ROOT = Path(__file__).parents[2]
_VARIABLE = "PLUMBLINE_BENCH_REWORDED"
"""Code of the reworded sentence; `*` is all."""
_FAILED = "PLUMBLINE_BENCH_FAILED"
_PLUGIN = "bench.judge.sentences"


def reworded(template: str) -> str:
    """Return a template with each word of its text changed, and its values as they are."""
    parts = []
    for text, name, form, conversion in Formatter().parse(template):
        literal = re.sub(r"[A-Za-z]{2,}", lambda word: f"{word[0]}q", text)
        parts.append(literal.replace("{", "{{").replace("}", "}}"))
        if name is not None:
            parts.append(f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}")
    return "".join(parts)


def pytest_configure() -> None:
    """Reword the sentences for this process: this module is a plugin of pytest as well."""
    chosen, table = os.environ[_VARIABLE], sentences.templates()
    codes = list(table) if chosen == "*" else [chosen]
    table.update({code: reworded(table[code]) for code in codes})


_failed: set[str] = set()


def pytest_runtest_logreport(report: Any) -> None:
    """Remember a failed test."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_unconfigure() -> None:
    """Write the failed tests for the process that counts them."""
    Path(os.environ[_FAILED]).write_text(json.dumps(sorted(_failed)), encoding="utf-8")


def failing(chosen: str, tests: list[str]) -> list[str]:
    """Return the tests that fail with a reworded sentence."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "failed.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", _PLUGIN, "--tb=no", *tests]
        environment = {**os.environ, _VARIABLE: chosen, _FAILED: str(out)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
        failed: list[str] = json.loads(out.read_bytes())
        return failed


def main() -> None:
    """Measure, print and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--codes", nargs="*", default=[], help="reword these as well")
    parser.add_argument("--readers", type=Path, help="result of before: its tests that read a sentence")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    known = json.loads(arguments.readers.read_bytes())["all_reworded"] if arguments.readers else None
    readers = known or failing("*", ["tests/unit"])
    print(f"{len(readers)} tests read a sentence", flush=True)
    counts = {}
    for code in (
        *random.Random(arguments.seed).sample(sorted(sentences.templates()), arguments.count),
        *arguments.codes,
    ):
        tests = failing(code, readers)
        counts[code] = len(tests)
        print(f"{len(tests):3d} {code}", *tests, sep="\n      ", flush=True)
    result = {
        "all_reworded": readers, "one_reworded": counts, "most": max(counts.values()), "seed": arguments.seed,
        "num_sentences": len(sentences.templates()), "seconds": round(time.perf_counter() - began),
    }  # fmt: skip
    print(f"at most {result['most']} tests fail by one sentence")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
