"""One spec under several environments: repeatability and agreement.

    PYTHONPATH=. python bench/train/versions.py --python ENV1/bin/python --python ENV2/bin/python \
        --out bench/results/train-versions.json

Each environment holds its own torch and transformers; the first is the reference. Every environment trains twice, and
each record is judged against the reference's. `learn` is compared by its digests alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.train.workload import Workload, machine
from plumbline.judge import compare
from plumbline.launch import trainer_environment
from plumbline.records import LoadedRecord, load_record
from plumbline.report.sentences import sentence_of
from plumbline.schema.spec import write_spec

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def _train(python: str, spec: Path, out: Path, workload: Workload) -> LoadedRecord:
    environment = trainer_environment({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    cache = str(workload.folder / "cache")
    command = [python, "-m", "plumbline.train", str(spec), str(out), "--data", workload.url, "--cache", cache]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return load_record(out)


def _digests(record: LoadedRecord) -> dict[str, Any]:
    return {"parts": {part.key: part.sha256 for part in record.record.parts}, "evidence": _steps(record)}


def _steps(record: LoadedRecord) -> Any:
    evidence = record.record.evidence
    return [part.to_json() for part in (evidence.data, evidence.model, evidence.probe, evidence.learn) if part]


def _judged(reference: LoadedRecord, candidate: LoadedRecord) -> dict[str, Any]:
    judgement = compare(reference, candidate)
    closest = [finding for finding in judgement.findings if finding.observed is not None]
    return {
        "verdict": judgement.verdict,
        "notes": [note.to_json() for note in judgement.notes],
        "causes": [cause.code for cause in judgement.causes],
        "findings": [
            {"metric": sentence_of(item.metric), "observed": item.observed, "limit": item.limit} for item in closest
        ],
    }


def main() -> None:
    """Train, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", action="append", required=True, help="of an environment; the first is the reference"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload(Path(folder), "tiny", 32)
        spec = workload.spec(16, probe={"steps": 20}, learn={"steps": 20, "evaluation_rows": 64})
        path = Path(folder) / "spec.json"
        write_spec(spec, path)
        results_found, reference = [], None
        for place, python in enumerate(arguments.python):
            once, again = (_train(python, path, Path(folder) / f"out-{place}-{run}", workload) for run in (1, 2))
            reference = reference or once
            packages = once.record.fingerprint.packages
            results_found.append({
                "packages": {name: packages.get(name, "") for name in PACKAGES},
                "agrees_with_itself": _digests(once) == _digests(again),
                "against_the_first": _judged(reference, once),
            })  # fmt: skip
    result = {"machine": machine(), "environments": results_found}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(results_found, indent=1) + "\n")


if __name__ == "__main__":
    main()
