"""Count the unit tests that fail if one sentence of `report/sentences.toml` is reworded.

`python -m bench.judge.sentences --out bench/results/sentences.json`: first all sentences are reworded at once, which
gives every test that reads any; then random sentences, and all that more than ten tests read, one at a time, with the
tests that read them.
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
_MOST = 10
"""Number of tests that may fail by one sentence."""


def reworded(template: str) -> str:
    """Return a template with each word of its text changed, and its values as they are."""
    parts = []
    for text, name, form, conversion in Formatter().parse(template):
        literal = re.sub(r"[A-Za-z]{2,}", lambda word: f"{word[0]}q", text)
        parts.append(literal.replace("{", "{{").replace("}", "}}"))
        if name is not None:
            parts.append(f"{{{name}{f'!{conversion}' if conversion else ''}{f':{form}' if form else ''}}}")
    return "".join(parts)


class _Recorded(dict[str, str]):
    """Table of sentences that notes which test reads which."""

    def get(self, code: str, default: Any = None) -> Any:
        """Return a sentence."""
        _readers.setdefault(code, set()).add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])
        return super().get(code, default)


_readers: dict[str, set[str]] = {}
_failed: set[str] = set()


def pytest_configure() -> None:
    """Reword the sentences for this process: this module is a plugin of pytest as well."""
    chosen, table = os.environ[_VARIABLE], dict(sentences.templates())
    table.update({code: reworded(table[code]) for code in (table if chosen == "*" else [chosen])})
    recorded = _Recorded(table)
    sentences.templates = lambda: recorded  # type: ignore[assignment]


def pytest_runtest_logreport(report: Any) -> None:
    """Remember a failed test."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_unconfigure() -> None:
    """Write the failed tests, and the tests that read each sentence, for the process that counts them."""
    readers = {code: sorted(tests & _failed) for code, tests in _readers.items()}
    Path(os.environ[_FAILED]).write_text(json.dumps([sorted(_failed), readers]), encoding="utf-8")


def failing(chosen: str, tests: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the tests that fail with a reworded sentence, and these by the sentences that they read."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "failed.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", _PLUGIN, "--tb=no", *tests]
        environment = {**os.environ, _VARIABLE: chosen, _FAILED: str(out)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
        failed, readers = json.loads(out.read_bytes())
        return failed, readers


def main() -> None:
    """Measure, print and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", type=Path, help="result of before, whose tests are run instead of all")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.perf_counter()
    tests = json.loads(arguments.readers.read_bytes())["all_reworded"] if arguments.readers else ["tests/unit"]
    failed, readers = failing("*", tests)
    print(f"{len(failed)} tests read a sentence", flush=True)
    codes = random.Random(arguments.seed).sample(sorted(sentences.templates()), arguments.count)
    often = sorted(code for code, tests in readers.items() if len(tests) > _MOST and code not in codes)
    counts = {}
    for code in (*codes, *often):
        tests = failing(code, readers[code])[0] if readers.get(code) else []
        counts[code] = len(tests)
        print(f"{len(tests):3d} {code}", *tests, sep="\n      ", flush=True)
    result = {
        "all_reworded": failed, "random": {code: counts[code] for code in codes},
        "read_by_more_than_ten_tests": {code: counts[code] for code in often}, "most": max(counts.values()),
        "failing_tests_that_read_it": {
            code: len(readers[code]) for code in sorted(readers, key=lambda code: (-len(readers[code]), code))
        },
        "seed": arguments.seed, "num_sentences": len(sentences.templates()),
        "seconds": round(time.perf_counter() - began),
    }  # fmt: skip
    print(f"at most {result['most']} tests fail by one sentence")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
