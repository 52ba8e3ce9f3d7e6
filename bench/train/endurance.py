"""Twenty repeats and ten kills of one spec: all digests must be equal.

    PYTHONPATH=. python bench/train/endurance.py --out bench/results/train-endurance.json

Each repeat is a process of its own, with another PYTHONHASHSEED and in another folder; started as root, every other
one runs as `nobody`. Each killed training is started again until it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.train.workload import Workload, machine
from plumbline.launch import trainer_environment
from plumbline.schema.record import RunRecord, read_record
from plumbline.schema.spec import RunSpec, write_spec

NOBODY = 65534


def digests(record: RunRecord) -> dict[str, Any]:
    """Return all digests that must be equal."""
    evidence = record.evidence.to_json()
    if evidence["learn"]:
        evidence["learn"].pop("resumed_at")
    return {"evidence": evidence, "parts": {part.key: part.sha256 for part in record.parts}}


def _command(spec: RunSpec, workload: Workload, out: Path, cache: Path) -> list[str]:
    write_spec(spec, out.with_suffix(".json"))
    command = [sys.executable, "-m", "plumbline.train", str(out.with_suffix(".json")), str(out)]
    return [*command, "--data", workload.url, "--cache", str(cache)]


def _can_be_nobody() -> bool:
    """Return whether the user `nobody` can run this Python."""
    if os.geteuid() != 0:
        return False
    try:
        subprocess.run([sys.executable, "-c", "import torch"], user=NOBODY, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def repeats(workload: Workload, count: int) -> dict[str, Any]:
    """Train the same spec repeatedly."""
    spec = workload.spec(8, probe={"steps": 20, "envelope_seeds": 1}, learn={"steps": 20, "evaluation_rows": 64})
    as_nobody, result, seconds = _can_be_nobody(), [], []
    for place in range(count):
        with tempfile.TemporaryDirectory(prefix=f"place-{place}-") as folder:
            out, user = Path(folder) / "out", NOBODY if as_nobody and place % 2 else None
            command = _command(spec, workload, out, Path(folder) / "cache")
            if user is not None:
                os.chown(folder, user, user)
            environment = trainer_environment({"PYTHONHASHSEED": str(place), "OMP_NUM_THREADS": "1"})
            started = time.monotonic()
            subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL, user=user, cwd=folder)
            seconds.append(time.monotonic() - started)
            result.append(digests(read_record(out)))
    equal = sum(item == result[0] for item in result)
    return {"runs": count, "equal": equal, "as_another_user": count // 2 if as_nobody else 0, "seconds": seconds}


def _kill_once(command: list[str], environment: dict[str, str], after: float) -> int | None:
    """Kill the training `after` seconds into its learn part; return its exit code if it ended before."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        for line in child.stderr or ():
            if '"learn"' in line:
                break
        try:
            return child.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return None


def kills(workload: Workload, count: int, seed: int) -> dict[str, Any]:
    """Kill at random moments, start again, and compare with the undisturbed run."""
    learn = {"steps": 400, "checkpoint_every": 25, "evaluate_every": 200, "evaluation_rows": 64}
    spec = workload.spec(8, learn=learn)
    environment = trainer_environment({"OMP_NUM_THREADS": "1"})
    dice, folder = random.Random(seed), workload.folder
    calm = folder / "calm"
    started = time.monotonic()
    subprocess.run(
        _command(spec, workload, calm, folder / "cache"), env=environment, check=True, stderr=subprocess.DEVNULL
    )
    length = read_record(calm).timings["learn"]
    expected, result = digests(read_record(calm)), []
    for place in range(count):
        out = folder / f"killed-{place}"
        command = _command(spec, workload, out, folder / "cache")
        moments = []
        while True:
            moment = dice.uniform(0, length)
            if len(moments) == 1 or _kill_once(command, environment, moment) is not None:
                break
            moments.append(moment)
        if not (out / "record.json").exists():
            subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        record = read_record(out)
        assert record.evidence.learn is not None
        result.append({
            "killed_after_seconds": moments, "resumed_at": list(record.evidence.learn.resumed_at),
            "equal": digests(record) == expected,
        })  # fmt: skip
        shutil.rmtree(out)
    return {"kills": result, "equal": sum(f["equal"] for f in result), "seconds": time.monotonic() - started}


def main() -> None:
    """Run both and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        workload = Workload(Path(folder), "tiny", 32)
        result = {
            "machine": machine(),
            "repeats": repeats(workload, arguments.repeats),
            "interruptions": kills(workload, arguments.kills, arguments.seed),
        }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
