"""`make mutants`: change code in small ways, and count the changes that its tests notice.

Mutants are cosmic-ray's, constants included, of the modules of one group: the judge, the controller's transport,
dispatch and alerts, or what makes a round's verdict of records, judgements and earlier nights. Each is tried in a copy
of the tree with the tests of its package. `--sample N` tries a random N of them, drawn by `--seed`. Left out:
annotations, decorators and their arguments, an order of words, `is` for `==`. Result: `bench/results/mutants.json` or
`mutants-GROUP.json`, with the change of every survivor, and with its reason if `surviving.toml` has one. After tests
were added, `--update` tries what the result lacks and its survivors, and `--survivors` its survivors alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mutation import ROOT, Key, Part, Run, try_shard

RESULTS = ROOT / "bench" / "results"
EXPLAINED = Path(__file__).with_name("surviving.toml")


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
                ("plumbline/judge", "plumbline/schema/sketch.py", "plumbline/schema/digest.py"),
                ("tests/unit/judge", "tests/unit/schema/test_sketch.py", "tests/unit/schema/test_digest.py"),
            ),
        ),
        "mutants.json", least=0.9, timeout_seconds=600,
    ),
    "controller": Group(
        (
            Part(("plumbline/night/alerts",), ("tests/unit/night/alerts",)),
            Part(
                _files("plumbline/night/central/", "central_store gathering outbox"),
                _files("tests/unit/night/central/test_", "outbox checkpoints central_store gathering transport"),
            ),
            Part(("plumbline/night/central/series.py",), ("tests/unit/night/central/test_series.py",)),
            Part(
                ("plumbline/night/dispatch",),
                _files("tests/unit/night/dispatch/test_", "deadlines training_run loop training_order"),
            ),
        ),
        "mutants-controller.json", least=1.0, timeout_seconds=30,
    ),
    "rounds": Group(
        (
            Part(("plumbline/records",), ("tests/unit/records",)),
            Part(
                ("plumbline/night/rounds",),
                (
                    *_files("tests/unit/judge/test_", "canary consensus learning_causes withheld wrong_reference"),
                    "tests/unit/report/test_cli.py", "tests/unit/report/test_site.py", "tests/unit/night/rounds",
                ),
            ),
            Part(
                _files(
                    "plumbline/judge/",
                    "statistics/equivalence history/allowed history/decision history/detection history/engine "
                    "history/experiments history/metrics history/night history/reference history/segments",
                ),
                ("tests/unit/judge/history", "tests/unit/night/rounds"),
            ),
        ),
        "mutants-rounds.json", least=0.9, timeout_seconds=180,
    ),
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

    run = Run(group.parts, group.timeout_seconds, args.sample, args.seed, args.shards, args.seconds, is_wanted)
    with ThreadPoolExecutor(args.shards) as pool:
        shards = list(pool.map(partial(try_shard, run), range(args.shards)))
    new = {_key_of(one): one for shard in shards for one in shard["results"]}
    real = shards[0]["real"]
    tried = [one for key, one in (before | new).items() if key in real]
    counts = {"sources": sources, "mutants": len(real), "drawn": shards[0]["drawn"]}
    results = sorted(tried, key=lambda one: (one["file"], one["line"]))
    return _report(args, group, results, counts | {"seconds": round(time.monotonic() - began)})


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
