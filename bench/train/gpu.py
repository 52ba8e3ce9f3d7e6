"""All checks that need a GPU, in one command, `make gpu`.

    PYTHONPATH=.:.venv/peers python bench/train/gpu.py [--only CHECK ...] [--out bench/results/gpu]

Each check writes its raw result to `OUT/CHECK.json`, and says what was asked and whether it holds:

    throughput-base, throughput-large   bf16 beside Hugging Face's Trainer and a bare loop; strict against default
    mfu-large                           MFU of BERT-large at sequence 512 against the GEMM rate measured beside it
    probe-base                          the time of BERT-base's whole probe
    records                             a CPU and a GPU record of one spec; then TF32 switched on; all three are kept
    dropout                             the same masks on CPU and GPU

Exit code 0: all of it holds; 1: something does not; 2: there is no GPU, or wrong usage; 3: a check could not be run.
`--device cpu --size tiny` walks through all of it without a GPU; what is asked of a GPU is not judged there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.train.workload import Workload, machine
from plumbline.errors import ExitCode, InconclusiveError
from plumbline.judge import compare
from plumbline.launch import run_training, trainer_environment
from plumbline.records import LoadedRecord, load_record
from plumbline.report.sentences import spoken
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.train.dropout import keep_mask

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """Device and size of the checks."""

    device: str
    size: str
    """In place of base and large, for a walk through; empty as a rule."""
    folder: Path
    out: Path

    @property
    def judges(self) -> bool:
        """Return whether the GPU's requirements apply here."""
        return self.device == "cuda" and not self.size

    def train(self, workload: Workload, spec: RunSpec, name: str, **environment: str) -> LoadedRecord:
        """Train in a separate process."""
        out = self.folder / name
        write_spec(spec, out.with_suffix(".json"))
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
        code = run_training(
            out.with_suffix(".json"), out, data=workload.url, cache=self.folder / "cache", platform=name,
            record_id=name, environment={"PYTHONPATH": str(ROOT), **hidden, **environment},
        )  # fmt: skip
        if code:
            raise InconclusiveError(f"the training ended with {code}", where=name)
        return load_record(out)


Found = dict[str, Any]


def _holds(place: Place, **asked: bool) -> Found:
    """Return which requirements hold; none apply on a different device."""
    return {"asked": asked if place.judges else {}, "holds": all(asked.values()) if place.judges else None}


def _throughput(place: Place, size: str, batch: int, length: int) -> Found:
    """Alternate our loop, the Trainer's and a bare loop; see `throughput.py`."""
    small = bool(place.size)
    out = place.folder / f"{size}.json"
    given = {
        "--size": place.size or size, "--precision": "bf16", "--batch-size": 4 if small else batch,
        "--length": 32 if small else length, "--rounds": 3 if small else 20, "--out": out,
    }  # fmt: skip
    command = [sys.executable, "-m", "bench.train.throughput"]
    command += [str(word) for pair in given.items() for word in pair]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if place.device == "cpu" else {}
    # The trainer's own: without it strict determinism is refused on a GPU. Where the peers lie, our caller says.
    environment = trainer_environment({**hidden, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))})
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InconclusiveError((done.stderr.strip().splitlines() or ["no reason given"])[-1], where=f"{size} {batch}")
    result = json.loads(out.read_bytes())
    ratio = {name: clocks["wall"]["median"] for name, clocks in result["ratios"].items()}
    asked = {
        "ahead_of_the_trainer": ("ours/trainer", 1.0),
        "within_2_percent_of_the_bare_loop": ("ours/bare", 1.02),
        "strict_at_most_1_10": ("strict/default", 1.10),
    }
    answers = {name: ratio[key] <= most for name, (key, most) in asked.items() if key in ratio}
    missing = {"could_not_be_run": result["left_out"][0]} if result["left_out"] else {}
    return {**_holds(place, **answers), **missing, **result}


def _mfu_large(place: Place) -> Found:
    small = bool(place.size)
    workload = Workload(place.folder / "mfu", place.size or "large", 32 if small else 512)
    steps = {"steps": 10 if small else 100, "precision": "bf16", "compile": place.device == "cuda"}
    speed = place.train(workload, workload.spec(4 if small else 32, speed=steps), "mfu-run").record.evidence.speed
    if speed is None or speed.mfu is None:
        raise InconclusiveError("no MFU was measured", where="mfu-large")
    return {**_holds(place, at_least_half=speed.mfu >= 0.5), "mfu": speed.mfu, "speed": speed.to_json()}


def _probe_base(place: Place) -> Found:
    small = bool(place.size)
    workload = Workload(place.folder / "probe", place.size or "base", 32 if small else 128)
    spec = workload.spec(4 if small else 32, probe={"steps": 3 if small else 20})
    began = time.perf_counter()
    record = place.train(workload, spec, "probe-run").record
    seconds = time.perf_counter() - began
    return {**_holds(place, at_most_60_s=seconds <= 60), "seconds": seconds, "timings": record.timings}


def _judged(reference: LoadedRecord, candidate: LoadedRecord) -> Found:
    judgement = compare(reference, candidate)
    return {
        "verdict": judgement.verdict,
        "notes": [spoken(note.to_json()) for note in judgement.notes],
        "causes": [cause.code for cause in judgement.causes],
        "findings": [spoken(finding.to_json()) for finding in judgement.findings],
    }


def _records(place: Place) -> Found:
    """Train one spec on the CPU, on the device, and on the device with TF32."""
    workload = Workload(place.folder / "records", place.size or "tiny", 32)
    spec = workload.spec(8, probe={"steps": 3 if place.size else 20})
    fault = "model.tf32_switched_on" if place.device == "cuda" else "model.tf32"
    outside = {"PLUMBLINE_FAULT": fault, "PYTHONPATH": f"{ROOT / 'bench' / 'faults' / 'site'}{os.pathsep}{ROOT}"}
    cpu = place.train(workload, spec, "cpu", CUDA_VISIBLE_DEVICES="")
    device = place.train(workload, spec, place.device if place.device != "cpu" else "cpu-again")
    tf32 = place.train(workload, spec, "tf32", **outside)
    for record in (cpu, device, tf32):
        kept = place.out / "records" / record.folder.name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(record.folder, kept)
    plain, rounded = _judged(cpu, device), _judged(cpu, tf32)
    named = rounded["verdict"] == "drift" and rounded["causes"] == ["precision"]
    # Of another kernel the CPU itself makes nothing: there its two records are the same bits, and TF32 is emulated.
    holds = plain["verdict"] == "pass" and named
    return {
        "asked": {"the_device_passes": plain["verdict"] == "pass", "tf32_is_drift_by_precision": named},
        "holds": holds,
        "device": plain,
        "tf32": rounded,
    }


def _dropout(place: Place) -> Found:
    counts = {}
    for rate in (0.1, 0.5):
        for step in range(3):
            at = {"seed": 7, "step": step, "layer": 2, "first_row": 16}
            shape = (4, 2, 32, 32) if place.size else (32, 12, 128, 128)
            host, there = (keep_mask(shape, rate, device=torch.device(d), **at).cpu() for d in ("cpu", place.device))
            counts[f"rate {rate}, step {step}"] = int((host != there).sum())
    equal = not any(counts.values())
    return {"asked": {"the_same_bits": equal}, "holds": equal, "elements_that_differ": counts}


CHECKS: dict[str, Callable[[Place], Found]] = {
    "throughput-base": lambda place: _throughput(place, "base", 64, 128),
    "throughput-large": lambda place: _throughput(place, "large", 16, 512),
    "mfu-large": _mfu_large,
    "probe-base": _probe_base,
    "records": _records,
    "dropout": _dropout,
}


def _run(name: str, place: Place) -> Found:
    began = time.perf_counter()
    try:
        result = CHECKS[name](place)
    except Exception as error:  # noqa: BLE001 - time on a GPU is dear: one check that breaks takes no other along
        traceback.print_exc()
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        result = {"asked": {}, "holds": None, "could_not_be_run": said}
    result = {"check": name, "machine": machine(), "took_seconds": time.perf_counter() - began, **result}
    place.out.mkdir(parents=True, exist_ok=True)
    (place.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    state = (
        result.get("could_not_be_run")
        or {True: "holds", False: "does not hold", None: "not judged here"}[result["holds"]]
    )
    print(f"{name}: {state} {result['asked'] or ''}".rstrip(), flush=True)
    return result


def _code(found: list[Found]) -> ExitCode:
    if any(item["holds"] is False for item in found):
        return ExitCode.DRIFT
    return ExitCode.INCONCLUSIVE if any("could_not_be_run" in item for item in found) else ExitCode.PASS


def main(argv: list[str] | None = None) -> int:
    """Run the requested checks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CHECKS), help="only this check; may be repeated")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", default="", help="a small model in place of base and large")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "gpu")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write("no GPU: torch sees none here (run it where nvidia-smi lists one; --device cpu --size tiny)\n")
        return ExitCode.USAGE
    with tempfile.TemporaryDirectory() as folder:
        place = Place(arguments.device, arguments.size, Path(folder), arguments.out)
        return _code([_run(name, place) for name in arguments.only or CHECKS])


if __name__ == "__main__":
    sys.exit(main())
