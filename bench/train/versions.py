"""One spec under many environments: repeatability, formulas, agreement; `make versions`.

    python -m bench.train.versions --build .venv/stacks                # environments of stacks.toml, built once each
    python -m bench.train.versions --nightly                           # five of them: oldest, newest, three between
    python -m bench.train.versions --environment ENV1 --environment ENV2 ...    # a team's own instead

Each environment trains twice as `plumbline train --python` does, and answers the selfcheck. Each record is judged
against that of the last environment. The result goes to bench/results/train-versions.json, and its rows to stdout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.faults.results import ROOT, machine
from bench.train.workload import Workload
from plumbline.environments.launch import run_training
from plumbline.environments.selfcheck import check_trainer
from plumbline.judge import compare
from plumbline.records import LoadedRecord, load_record
from plumbline.report.sentences import sentence_of
from plumbline.schema.digest import digest_json
from plumbline.schema.errors import PlumblineError
from plumbline.schema.spec import write_spec

TABLE = Path(__file__).with_name("stacks.toml")
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic", "safetensors")
LOCK = "requirements.txt"
_SECONDS = 1800


def built(folder: Path, torch: str, *, is_nightly: bool) -> Iterator[Path]:
    """Yield the table's environments; build those that are missing, each below the digest of what it is made from."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for stack in table["stacks"]:
        if not stack.pop("is_nightly", False) and is_nightly:
            continue
        place = folder / digest_json([stack, table["until"], torch])[:16]
        if not (place / LOCK).is_file():
            try:
                _build(place, stack, table["until"], torch)
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"{place}: {error}\n")  # its row says that it does not train
        yield place


def _build(place: Path, stack: dict[str, Any], until: str, torch: str) -> None:
    _uv("venv", "--clear", "--python", stack["python"], str(place))
    chosen, python = ["--torch-backend", "cpu"] if torch == "cpu" else [], ["--python", str(place)]
    _uv("pip", "install", *python, *chosen, "--exclude-newer", until, *stack["packages"])
    # Last: an environment with a lock is complete, and its records name this lock.
    (place / LOCK).write_text(_uv("pip", "freeze", *python), encoding="utf-8")


def _uv(*words: str) -> str:
    command = [sys.executable, "-m", "uv", "--quiet", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class _Bench:
    """One workload, trained under each environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workload = Workload(folder, "tiny", 32)
        self._spec = folder / "spec.json"
        parts = {
            "probe": {"steps": 20}, "learn": {"steps": 20, "evaluation_rows": 64},
            "speed": {"steps": 10, "precision": "bf16"},
        }  # fmt: skip
        write_spec(self._workload.spec(16, **parts), self._spec)

    def measure(self, environment: Path) -> tuple[dict[str, Any], LoadedRecord | None]:
        """Train twice; return the result, and the first record."""
        name = f"env-{len(list(self._folder.glob('env-*-1')))}"
        once, again = (self._train(environment, f"{name}-{run}") for run in (1, 2))
        if isinstance(once, str) or isinstance(again, str):
            return {"environment": environment.name, "error": once if isinstance(once, str) else again}, None
        _, selfcheck, problem = check_trainer(str(environment))
        fingerprint, speed = once.record.fingerprint, once.record.evidence.speed
        result = {
            "python": fingerprint.python,
            "packages": {package: fingerprint.packages.get(package, "") for package in PACKAGES},
            "lock_sha256": fingerprint.lock_sha256,
            "agrees_with_itself": _digests(once) == _digests(again),
            "selfcheck": selfcheck.model_dump() if selfcheck else {"verdict": "refused", "at": problem},
            "portable": _portable(once),
            "native": _native(once),
            "production": _production(speed.production) if speed else "not measured",
        }
        return result, once

    def _train(self, environment: Path, name: str) -> LoadedRecord | str:
        out, said = self._folder / name, list[str]()
        try:
            code = self._run(environment, out, said)
        except PlumblineError as error:
            return str(error)
        return load_record(out) if code == 0 else f"exit code {code}: {' '.join(line for line in said if line)[:300]}"

    def _run(self, environment: Path, out: Path, said: list[str]) -> int:
        return run_training(
            self._spec, out, data=self._workload.url, cache=self._folder / "cache", platform="bench",
            record_id=out.name, trainer=str(environment), timeout_seconds=_SECONDS, echo=False,
            environment={"OMP_NUM_THREADS": "1"}, on_progress=lambda event: said.append(str(event.get("line", ""))),
        )  # fmt: skip


def _digests(record: LoadedRecord) -> dict[str, Any]:
    evidence = record.record.evidence
    parts = {part.key: part.sha256 for part in record.record.parts}
    trained = (evidence.data, evidence.model, evidence.probe, evidence.learn)
    return {"parts": parts, "evidence": [part.to_json() for part in trained if part]}


def _portable(record: LoadedRecord) -> str:
    """Return the losses of the windows, which every version has within `limits.EXACT`."""
    probe = record.record.evidence.probe
    found = probe.portable if probe else None
    if found is None or found.lost:
        return f"none: {found.lost if found else 'not run'}"
    return " ".join(f"{float.fromhex(each.loss or 'nan'):.12g}" for each in found.windows)


def _native(record: LoadedRecord) -> str:
    """Return the digest of the native training: each step's logits, gradients and weights, and the learning curve."""
    probe, learn = record.record.evidence.probe, record.record.evidence.learn
    steps = [[step.logits, step.gradients, step.weights] for step in probe.steps_of()] if probe else []
    return digest_json([steps, learn.losses if learn else None])[:12]


def _production(production: Any) -> str:
    return "not measured" if production is None else f"lost: {production.lost}" if production.lost else "checked"


def _judged(reference: LoadedRecord, candidate: LoadedRecord) -> dict[str, Any]:
    judgement = compare(reference, candidate)
    closest = [finding for finding in judgement.findings if finding.observed is not None]
    at = judgement.first_divergence
    return {
        "verdict": judgement.verdict,
        "first_divergence": at.to_json() if at else None,
        "notes": [note.to_json() for note in judgement.notes],
        "causes": [cause.code for cause in judgement.causes],
        "findings": [
            {"metric": sentence_of(item.metric), "observed": item.observed, "limit": item.limit} for item in closest
        ],
    }


def _is_right(result: dict[str, Any]) -> bool:
    """Return whether an environment trains, agrees with itself and the last one, and computes no wrong bits."""
    judged = result.get("against_the_last")
    is_steady = result.get("agrees_with_itself") and result["selfcheck"]["verdict"] in {"pass", "unknown"}
    return bool(is_steady) and (judged is None or judged["verdict"] == "pass")


def main() -> int:
    """Train, judge, print and write; return 1 unless each environment is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", action="append", default=[], type=Path, help="a folder; the last is compared")
    parser.add_argument("--build", type=Path, default=ROOT / ".venv" / "stacks", help="folder of the table's own")
    parser.add_argument("--nightly", action="store_true", help="the table's environments of the nightly job alone")
    parser.add_argument("--torch", choices=("cpu", "index"), default="cpu", help="build of torch in the table's own")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "train-versions.json")
    arguments = parser.parse_args()
    results, records = list[dict[str, Any]](), list[LoadedRecord | None]()
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder))
        for environment in arguments.environment or built(
            arguments.build, arguments.torch, is_nightly=arguments.nightly
        ):
            result, record = bench.measure(environment)
            sys.stderr.write(f"{environment}: {json.dumps(result)[:300]}\n")
            results.append(result)
            records.append(record)
        last = records[-1]
        for result, record in zip(results, records, strict=True):
            is_other = record is not None and last is not None and record is not last
            result["against_the_last"] = _judged(last, record) if is_other else None
    document = {"machine": machine(), "environments": results}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(map(json.dumps, results)) + "\n")
    return 0 if results and all(map(_is_right, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
