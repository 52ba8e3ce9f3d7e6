"""Runs of cosmic-ray: try mutants in a copy of the tree, with the tests that cover their modules."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Span = tuple[tuple[int, int], tuple[int, int]]
Key = tuple[str, str, int]
"""File, operator and occurrence of a mutant."""


@dataclass(frozen=True)
class Part:
    """Modules that the same tests cover; the quickest tests come first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """What is tried: parts, the limit for one mutant, how many mutants are drawn, and until when."""

    parts: tuple[Part, ...]
    timeout_seconds: float
    sample: int
    """How many mutants are drawn; 0: all of them."""
    seed: int
    num_shards: int
    seconds: float
    is_wanted: Callable[[Key], bool]


def _command(tests: tuple[str, ...], timeout_seconds: float) -> str:
    # Half of a short run's time is the import of plug-ins that these tests do not need. The limit for one test ends a
    # mutant that runs forever although cosmic-ray was stopped.
    options = f"-x -q --no-header -p no:cacheprovider -p pytest_timeout --timeout={timeout_seconds:g}"
    return f"{sys.executable} -m pytest {options} {' '.join(tests)}"


def _config(path: Path, part: Part, timeout_seconds: float) -> Path:
    lines = [
        "[cosmic-ray]",
        f"module-path = {json.dumps(part.modules)}",
        f"timeout = {timeout_seconds:.1f}",
        "excluded-modules = []",
        f"test-command = {json.dumps(_command(part.tests, timeout_seconds))}",
        "[cosmic-ray.distributor]",
        'name = "local"',
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def copy_tree(folder: Path) -> None:
    """Copy what git tracks, as it is in the working tree."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def _untestable(path: Path) -> Iterator[Span]:
    """Return (line, column) spans of annotations and decorators."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        parts = [getattr(node, name, None) for name in ("annotation", "returns")]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.BinOp)):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            parts += [node.value] if names and names[0].strip("_")[:1].isupper() and not names[0].isupper() else []
        for part in parts:
            if isinstance(part, ast.expr):
                yield (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)


def _key(mutation: Any) -> Key:
    return str(mutation.module_path), str(mutation.operator_name), int(mutation.occurrence)


def _words(path: Path) -> Iterator[Span]:
    """Return spans of comparisons for equality of which a side is a word."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.Compare) or not all(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops):
            continue
        if any(
            isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, *node.comparators)
        ):
            yield (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _replaced(operator: str) -> set[str]:
    """Return the two operators if one comparison is replaced by another, such as `Eq` and `LtE`."""
    _, is_comparison, names = operator.partition("ReplaceComparisonOperator_")
    return set(names.split("_")) if is_comparison else set()


def _real(session: Path, folder: Path) -> list[Any]:
    """Return the mutants that a test could detect, in a stable order.

    Identity, and equality with a word, are replaced by their opposite alone: cosmic-ray does so for `None` and numbers,
    and an order of words, or `is` for `==`, is not a fault that anybody writes.
    """
    from cosmic_ray.work_db import use_db

    with use_db(session) as database:
        items = sorted(database.pending_work_items, key=lambda item: str(item.mutations))
    paths = {str(item.mutations[0].module_path) for item in items}
    never = {path: list(_untestable(folder / path)) for path in paths}
    words = {path: list(_words(folder / path)) for path in paths}

    def is_real(mutation: Any) -> bool:
        replaced, path = _replaced(str(mutation.operator_name)), str(mutation.module_path)
        is_opposite = replaced in ({"Eq", "NotEq"}, {"Is", "IsNot"})
        if replaced & {"Is", "IsNot"} and not is_opposite:
            return False
        spans = never[path] + (words[path] if replaced and not is_opposite else [])
        return not any(a <= mutation.start_pos < b for a, b in spans)

    return [item for item in items if is_real(item.mutations[0])]


def _pick(sessions: list[Path], folder: Path, run: Run, shard: int) -> tuple[set[Key], int]:
    """Skip unwanted mutants, and all outside this shard's sample; return all real mutants and the sample's size."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    real = [item for session in sessions for item in _real(session, folder)]
    drawn = random.Random(run.seed).sample(real, min(run.sample or len(real), len(real)))
    mine = {item.job_id for item in drawn[shard :: run.num_shards] if run.is_wanted(_key(item.mutations[0]))}
    for session in sessions:
        with use_db(session) as database:
            for item in list(database.pending_work_items):
                if item.job_id not in mine:
                    database.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return {_key(item.mutations[0]) for item in real}, len(drawn)


def _outcome(result: Any) -> str:
    return str(result.test_outcome.value if result.test_outcome else result.worker_outcome.value)


def _results(session: Path) -> Iterator[dict[str, Any]]:
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome

    with use_db(session) as database:
        for item, result in database.completed_work_items:
            if result.worker_outcome == WorkerOutcome.SKIPPED:
                continue
            mutation = item.mutations[0]
            yield {
                "file": str(mutation.module_path), "line": mutation.start_pos[0], "operator": mutation.operator_name,
                "occurrence": mutation.occurrence, "outcome": _outcome(result),
                "diff": result.diff if _outcome(result) == "survived" else "",
            }  # fmt: skip


def try_shard(run: Run, shard: int) -> dict[str, Any]:
    """Try this shard's mutants in a copy of the tree; the tests have to pass there first.

    Return the results, the keys of all real mutants, and how many were drawn.
    """
    ends = time.monotonic() + run.seconds
    with tempfile.TemporaryDirectory(prefix="plumbline-mutants-") as name:
        folder = Path(name)
        copy_tree(folder)
        given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in given)}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        task = partial(subprocess.run, cwd=folder, check=True, env=environment)
        cosmic_ray = [sys.executable, "-m", "cosmic_ray.cli"]
        pairs = []
        for place, part in enumerate(run.parts):
            task(_command(part.tests, run.timeout_seconds).split())
            pairs.append((_config(folder / f"{place}.toml", part, run.timeout_seconds), folder / f"{place}.sqlite"))
            task([*cosmic_ray, "init", *map(str, pairs[-1])])
        sessions = [session for _, session in pairs]
        real, num_drawn = _pick(sessions, folder, run, shard)
        try:
            for config, session in pairs:
                task([*cosmic_ray, "exec", str(config), str(session)], timeout=max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"shard {shard}: out of time; what is done counts\n")
        return {"real": real, "drawn": num_drawn, "results": [one for path in sessions for one in _results(path)]}
