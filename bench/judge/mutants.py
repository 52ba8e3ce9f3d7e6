"""`make mutants`: change code in small ways, and count the changes that its tests notice.

Mutants are cosmic-ray's, constants included, of the modules of one group: the judge, or the controller's transport,
dispatch and alerts. Each is tried in a copy of the tree with the tests of its package. `--sample N` tries a random N of
them, drawn by `--seed`. Annotations, decorators and their arguments are left out: no test can tell such mutants apart.
Result: `bench/results/mutants.json` or `mutants-GROUP.json`, with the change of every survivor, and with its reason if
`surviving.toml` has one. After tests were added, `--update` tries what the result lacks and its survivors, and
`--survivors` its survivors alone.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
EXPLAINED = Path(__file__).with_name("surviving.toml")
Span = tuple[tuple[int, int], tuple[int, int]]
Key = tuple[str, str, int]
"""File, operator and occurrence of a mutant."""


@dataclass(frozen=True)
class Part:
    """Modules that the same tests cover; the quickest tests come first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Parts with one result file; `least` is the minimum share of killed or explained mutants."""

    parts: tuple[Part, ...]
    result: str
    least: float
    timeout_seconds: float


def _files(start: str, names: str) -> tuple[str, ...]:
    return tuple(f"{start}{name}.py" for name in names.split())


GROUPS = {
    "judge": Group(
        (
            Part(
                ("plumbline/judge", "plumbline/sketch.py", "plumbline/digest.py"),
                ("tests/unit/judge", "tests/unit/test_sketch.py", "tests/unit/schema/test_digest.py"),
            ),
        ),
        "mutants.json", least=0.9, timeout_seconds=120,
    ),
    "controller": Group(
        (
            Part(("plumbline/alerts",), ("tests/unit/alerts",)),
            Part(
                _files("plumbline/central/", "central_store checkpoints gathering outbox"),
                _files("tests/unit/central/test_", "outbox checkpoints central_store gathering transport"),
            ),
            Part(("plumbline/central/series.py",), ("tests/unit/central/test_series.py",)),
            Part(
                ("plumbline/dispatch",),
                _files("tests/unit/dispatch/test_", "deadlines training_run loop training_order"),
            ),
        ),
        "mutants-controller.json", least=1.0, timeout_seconds=30,
    ),
}  # fmt: skip


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


def _real(session: Path, folder: Path) -> list[Any]:
    """Return the mutants that a test could detect, in a stable order."""
    from cosmic_ray.work_db import use_db

    with use_db(session) as database:
        items = sorted(database.pending_work_items, key=lambda item: str(item.mutations))
    spans = {path: list(_untestable(folder / path)) for path in {str(i.mutations[0].module_path) for i in items}}
    return [
        item
        for item in items
        if not any(a <= item.mutations[0].start_pos < b for a, b in spans[str(item.mutations[0].module_path)])
    ]


def _pick(
    sessions: list[Path], folder: Path, args: argparse.Namespace, shard: int, is_wanted: Callable[[Key], bool]
) -> tuple[int, int]:
    """Skip unwanted mutants, and all outside this shard's sample; return the counts of mutants and of the sample."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    real = [item for session in sessions for item in _real(session, folder)]
    drawn = random.Random(args.seed).sample(real, min(args.sample or len(real), len(real)))
    mine = {item.job_id for item in drawn[shard :: args.shards] if is_wanted(_key(item.mutations[0]))}
    for session in sessions:
        with use_db(session) as database:
            for item in list(database.pending_work_items):
                if item.job_id not in mine:
                    database.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(real), len(drawn)


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


def _changed(diff: str, sign: str) -> str:
    lines = [line[1:].strip() for line in diff.splitlines() if line[:1] == sign and line[:3] != sign * 3]
    return "\n".join(lines)


def _reason(result: dict[str, Any], explained: list[dict[str, Any]]) -> str:
    """Return why this survivor is harmless; "" if `surviving.toml` does not say."""
    facts = {"file": result["file"], "operator": result["operator"], "line": _changed(result["diff"], "-")}
    change = _changed(result["diff"], "+")
    for entry in explained:
        same = all(entry.get(name, fact) == fact for name, fact in facts.items())
        if same and change in entry.get("changes", [change]):
            return str(entry["reason"])
    return ""


def _shard(group: Group, args: argparse.Namespace, is_wanted: Callable[[Key], bool], shard: int) -> dict[str, Any]:
    """Try this shard's mutants in a copy of the tree; the tests have to pass there first."""
    ends = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory(prefix="plumbline-mutants-") as name:
        folder = Path(name)
        copy_tree(folder)
        given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in given)}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        task = partial(subprocess.run, cwd=folder, check=True, env=environment)
        run = [sys.executable, "-m", "cosmic_ray.cli"]
        pairs = []
        for place, part in enumerate(group.parts):
            task(_command(part.tests, group.timeout_seconds).split())
            pairs.append((_config(folder / f"{place}.toml", part, group.timeout_seconds), folder / f"{place}.sqlite"))
            task([*run, "init", *map(str, pairs[-1])])
        sessions = [session for _, session in pairs]
        count, drawn = _pick(sessions, folder, args, shard, is_wanted)
        try:
            for config, session in pairs:
                task([*run, "exec", str(config), str(session)], timeout=max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"shard {shard}: out of time; what is done counts\n")
        return {"mutants": count, "drawn": drawn, "results": [one for path in sessions for one in _results(path)]}


def _only(group: Group, modules: list[str]) -> Group:
    """Return the group restricted to these files and folders."""
    parts = []
    for part in group.parts:
        mine = [name for name in modules if any(f"{name}/".startswith(f"{own}/") for own in part.modules)]
        mine += [own for own in part.modules if any(own.startswith(f"{name}/") for name in modules)]
        parts += [replace(part, modules=tuple(mine))] if mine else []
    if not parts:
        raise SystemExit(f"the group has none of {', '.join(modules)}")
    return replace(group, parts=tuple(parts))


def _digests(modules: list[str]) -> dict[str, str]:
    paths = [ROOT / name for name in modules]
    files = [path for place in paths for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _before(path: Path, digests: dict[str, str]) -> dict[Key, dict[str, Any]]:
    """Return the earlier results of files that have not changed since."""
    before = json.loads(path.read_text(encoding="utf-8"))
    same = {name for name, digest in before["sources"].items() if digests.get(name) == digest}
    results = [one for one in before["results"] if one["file"] in same]
    return {_key_of(one): one for one in results}


def _key_of(result: dict[str, Any]) -> Key:
    return result["file"], result["operator"], result["occurrence"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", choices=list(GROUPS), default="judge")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants are tried; 0: all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", action="append", help="a file or folder of the group; may be repeated")
    parser.add_argument("--shards", type=int, default=2, help="how many copies work at once")
    parser.add_argument("--seconds", type=float, default=36000.0, help="when to stop")
    parser.add_argument("--update", action="store_true", help="keep the killed mutants of the result file")
    parser.add_argument("--survivors", action="store_true", help="try only the survivors of the result file")
    parser.add_argument("--out", type=Path, help="result file, instead of the group's")
    return parser.parse_args()


def main() -> int:
    """Run, write the result, and fail below the group's share of killed or explained mutants."""
    args, began = _arguments(), time.monotonic()
    group = GROUPS[args.group] if not args.module else _only(GROUPS[args.group], args.module)
    modules, out = [name for part in group.parts for name in part.modules], args.out or RESULTS / group.result
    sources = _digests(modules)
    before = _before(out, sources) if args.update or args.survivors else {}
    again = {key for key, one in before.items() if one["outcome"] == "survived"}

    def is_wanted(key: Key) -> bool:
        return key in again or (key not in before and not args.survivors)

    with ThreadPoolExecutor(args.shards) as pool:
        shards = list(pool.map(partial(_shard, group, args, is_wanted), range(args.shards)))
    new = {_key_of(one): one for shard in shards for one in shard["results"]}
    tried = list((before | new).values())
    results = sorted(tried, key=lambda one: (one["file"], one["line"]))
    return _report(args, group, results, shards[0] | {"sources": sources, "seconds": round(time.monotonic() - began)})


def _report(args: argparse.Namespace, group: Group, results: list[dict[str, Any]], counts: dict[str, Any]) -> int:
    """Write the result, print the survivors without a reason, and return the exit status."""
    explained = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["survivor"]
    survivors = [one | {"reason": _reason(one, explained)} for one in results if one["outcome"] == "survived"]
    killed, open_ = len(results) - len(survivors), [one for one in survivors if not one["reason"]]
    document = {
        "command": " ".join(["python", "bench/judge/mutants.py", *sys.argv[1:]]),
        "sources": counts["sources"], "mutants": counts["mutants"], "drawn": counts["drawn"], "tried": len(results),
        "killed": killed, "share": killed / len(results) if results else None, "unexplained": len(open_),
        "seconds": counts["seconds"], "survivors": survivors, "results": results,
    }  # fmt: skip
    out = args.out or RESULTS / group.result
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for one in open_:
        print(f"{one['file']}:{one['line']}: {_changed(one['diff'], '-')}  ->  {_changed(one['diff'], '+')}")
    print(f"{killed} of {len(results)} tried are killed ({document['mutants']} in all), ", end="")
    print(f"{len(survivors) - len(open_)} of {len(survivors)} survivors have a reason")
    return 0 if results and len(results) - len(open_) >= group.least * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
