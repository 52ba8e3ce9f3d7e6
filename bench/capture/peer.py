"""`python -m bench.capture.peer FOLDER [NAME ...]`: run a peer's suite of programs under `plumbline.capture`.

FOLDER is a clone of OrderLab/TrainCheck-Evaluation-Workloads, of which nothing is copied. Its honest programs must be
recorded unchanged and never flagged; its silent errors must be found, beside a healthy run and alone. torchvision,
gymnasium and their like come from PEER_PACKAGES, a folder of packages. The table is `bench/results/capture-peer.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import plumbline
from bench.faults.results import FOLDER, read_result, write_result
from plumbline.report.sentences import sentence_of
from plumbline.schema.fact import Fact

HERE = Path(__file__).parent
RESULT = FOLDER / "capture-peer.json"
STEPS = 20
RUNS = {
    "bare": ("", {"PEER_MODE": "bare"}), "first": ("", {}), "again": ("", {}),
    "other steps": ("", {"PLUMBLINE_ROUND": "another"}), "avx2, two threads": ("avx2, two threads", {}),
    "plain instructions": ("plain instructions", {}),
}  # fmt: skip
"""By name, the machine of a run, and its variables."""
MACHINES: dict[str, dict[str, str]] = {
    "": {},
    "avx2, two threads": {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"},
    "plain instructions": {
        "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE",
    },
}  # fmt: skip
_IMPORT = "from bench.capture.standins import RECORD, START, STEPS, capture"
_CPU = {
    r"device_ids=\[[\w.]+\]": "device_ids=None",
    r"""["']nccl["']""": "'gloo'",
    r"\.to\((self\.gpu_id|gpu_id|rank)\)": ".to('cpu')",
}


def edited(text: str, program: dict[str, Any]) -> tuple[str, int]:
    """Return a program as a user would record it, and the number of lines that this added or changed."""
    for pattern, new in (_CPU | program.get("replace", {})).items():
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    lines, added = [], 0
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        own = [indent + new for key, new in program.get("before", {}).items() if line.lstrip().startswith(key)]
        own += [line]
        for key, new in program.get("after", {}).items():
            if line.lstrip().startswith(key):
                own.append((indent[:-4] if new.startswith("-") else indent) + new.removeprefix("-"))
        lines += own
        added += len(own) - 1
    places = [place for place, line in enumerate(lines) if line.startswith("from __future__")]
    lines.insert(max(places, default=-1) + 1, _IMPORT)
    return "\n".join(lines) + "\n", added


def prepare(source: Path, folder: Path, program: dict[str, Any]) -> int:
    """Write a program's edited files into `folder`, and return the lines that a user adds or changes."""
    folder.mkdir(parents=True)
    added = 1 + program.get("changed", 0)
    for path in source.glob("[!_]*.py"):
        text, more = edited(path.read_text(encoding="utf-8"), program)
        (folder / path.name).write_text(text, encoding="utf-8")
        added += more
    return added


class Machine:
    """Server of programs on one kind of machine: torch reads its instruction set once, when it is loaded."""

    def __init__(self, variables: dict[str, str]) -> None:
        path = os.pathsep.join(filter(None, (str(HERE.parents[1]), os.environ.get("PEER_PACKAGES", ""))))
        own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "MASTER_ADDR": "localhost"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from bench.capture.standins import serve; serve()"],
            env=os.environ | own | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, command: list[str], folder: Path, record: Path, variables: dict[str, str]) -> str:
        """Run a program, and return why it has no record, or ""."""
        own = {"PEER_RECORD": str(record), "PEER_STEPS": str(STEPS), "PEER_MODE": "record"}
        log = record.with_name(f"{record.name}.log")
        job = {"command": command, "folder": str(folder), "log": str(log), "environment": own | variables}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        if code or not record.with_name(f"{record.name}.digest0").exists():
            return f"exit {code}: {(log.read_text().strip().splitlines() or ['no step was ended'])[-1]}"[:300]
        return ""

    def stop(self) -> None:
        """End the server."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()


def named(judgement: Any) -> str:
    """Return a judgement in a few words: verdict, first cause, its step and place."""

    def said(fact: Any) -> str:
        return sentence_of(fact) if isinstance(fact, Fact) else str(fact)

    at, causes = judgement.first_divergence, judgement.causes
    if judgement.verdict == "pass":
        return "pass"
    if at is None:
        finding = next(each for each in judgement.findings if each.outcome == judgement.verdict)
        return f"{judgement.verdict}: {said(finding.detail)}"[:300]
    word, why = (causes[0].code, said(causes[0].why)) if causes else ("-", "")
    return f"{judgement.verdict}: {word} at step {at.step}, {at.at}: {why}"[:300]


def honest(
    name: str, source: Path, folder: Path, program: dict[str, Any], machines: dict[str, Machine]
) -> dict[str, Any]:
    """Run one honest program on all machines, and judge each pair."""
    lines = prepare(source, folder / "program", program)
    command = [str(folder / "program" / program.get("script", "main.py")), *program.get("arguments", "").split()]
    row: dict[str, Any] = {"kind": "honest", "name": name, "lines": lines}
    for run, (machine, variables) in RUNS.items():
        start = {} if run == "bare" else {"PEER_START": str(folder / "start.safetensors")}
        problem = machines[machine].run(command, folder / "program", folder / run, variables | start)
        if problem:
            return row | {"problem": f"{run}: {problem}"}
    digests = [sorted(path.read_text() for path in folder.glob(f"{machine}.digest*")) for machine in ("bare", "first")]
    row["bits"] = "equal" if digests[0] == digests[1] else "DIFFERENT"
    records = {run: plumbline.read_record(folder / run) for run in RUNS if run != "bare"}
    first = records.pop("first")
    row["alone"] = named(plumbline.judge_alone(first))
    row |= {run: named(plumbline.compare(first, each, throughput=False)) for run, each in records.items()}
    evidence = first.record.evidence
    row["proven"] = sum(len(proof.errors) for proof in evidence.probe.proofs)
    row["lost"] = sorted({proof.lost for proof in evidence.probe.proofs if proof.lost})
    row["unknown"] = list(evidence.captured.unknown[:-3])
    return row


def wrong(name: str, source: Path, folder: Path, error: dict[str, Any], machines: dict[str, Machine]) -> dict[str, Any]:
    """Run one silent error and its healthy twin, and judge the pair and each record alone."""
    row: dict[str, Any] = {"kind": "error", "name": name, "by": error.get("rebuilt", "the original")}
    if "reason" in error:
        return row | {"by": "not run", "problem": error["reason"]}
    for side in ("healthy", "faulty"):
        command = [str(HERE / "errors.py"), error.get("rebuilt", ""), side]
        if "script" in error:
            more = error.get("replace", {}) | (error["healthy"] if side == "healthy" else {})
            prepare(source, folder / f"{side}-program", error | {"replace": more})
            command = [str(folder / f"{side}-program" / error["script"])]
        (folder / f"{side}-program").mkdir(parents=True, exist_ok=True)
        steps = {"PEER_STEPS": str(error.get("steps", STEPS)), "PLUMBLINE_ROUND": "peer"}
        if problem := machines[""].run(command, folder / f"{side}-program", folder / side, steps):
            return row | {"problem": f"{side}: {problem}"}
    healthy, faulty = (plumbline.read_record(folder / side) for side in ("healthy", "faulty"))
    row |= {"beside": named(plumbline.compare(healthy, faulty, throughput=False))}
    row |= {"alone": named(plumbline.judge_alone(faulty)), "healthy alone": named(plumbline.judge_alone(healthy))}
    notes = [note.text for note in plumbline.judge_alone(faulty).notes if isinstance(note.text, Fact)]
    return row | {"note": next((sentence_of(text) for text in notes if text.code == "captured.draws"), "")}


def main() -> None:
    """Run the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--work", type=Path, help="folder in which the records stay")
    given = parser.parse_args()
    work = (given.work or Path(tempfile.mkdtemp(prefix="peer-"))).resolve()
    fresh: dict[tuple[str, str], dict[str, Any]] = {}
    began = time.perf_counter()
    machines = {name: Machine(variables) for name, variables in MACHINES.items()}
    suites = {
        "programs.toml": ("fp_rate/workloads", honest),
        "errors.toml": ("silent-issue-detection/bug-reprod-scripts", wrong),
    }
    for file, (place, judged) in suites.items():
        for name, program in tomllib.loads((HERE / file).read_text()).items():
            if given.names and name not in given.names:
                continue
            shutil.rmtree(work / name, ignore_errors=True)
            row = judged(name, given.folder / place / name, work / name, program, machines)
            print(json.dumps(row), flush=True)
            fresh[row["kind"], name] = row
            rows = {(each["kind"], each["name"]): each for each in read_result(RESULT)["cells"]} | fresh
            write_result(
                RESULT,
                "python -m bench.capture.peer FOLDER",
                [rows[key] for key in sorted(rows)],
                seconds=round(time.perf_counter() - began),
            )
    for each in machines.values():
        each.stop()


if __name__ == "__main__":
    main()
