"""One training under many settings of a CPU: how many digests, in portable arithmetic and natively.

    PYTHONPATH=. python bench/train/portable.py --out bench/results/portable-settings.json \
        [--transformers FOLDER ...] [--torch FOLDER ...] [--nobodys-python FILE]

The training is the tiny one of `plumbline train --selfcheck`, both tasks, 3 steps; natively it runs in fp32. Folders
are those of `pip install --target`: other versions, put before the environment's own. The user `nobody` needs an
interpreter outside of a home folder; it uses this environment's packages. Settings that a machine cannot
offer are listed as failed, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_NOBODY = 65534
SETTINGS: dict[str, dict[str, Any]] = {
    "1 thread": {},
    "2 threads": {"environment": {"OMP_NUM_THREADS": "2"}},
    "AVX2": {"environment": {"ATEN_CPU_CAPABILITY": "avx2"}},
    "no vector ISA": {"environment": {"ATEN_CPU_CAPABILITY": "default"}},
    "no vector ISA, 2 threads": {"environment": {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"}},
    "MKL for AVX2": {"environment": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}},
    "MKL for SSE4.2": {"environment": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}},
    "MKL_CBWR=COMPATIBLE": {"environment": {"MKL_CBWR": "COMPATIBLE"}},
    "oneDNN for SSE4.1": {"environment": {"ONEDNN_MAX_CPU_ISA": "SSE41"}},
    "without oneDNN": {"arguments": ["--without-onednn"]},
    "SDPA": {"arguments": ["--attention", "sdpa"]},
    "2 processes": {"processes": 2},
    "4 processes": {"processes": 4},
    "another hash seed": {"environment": {"PYTHONHASHSEED": "12345"}},
    "another user": {"user": _NOBODY},
    "another folder": {"cwd": "/"},
}  # fmt: skip


def _native(task: str, attention: str, ranks: Any) -> str:
    """Train like the probe in fp32; return the weights' digest."""
    from plumbline.train.digests import digest_tensors
    from plumbline.train.engine import Engine
    from plumbline.train.model import build_model, load_weights
    from plumbline.train.selfcheck import _batch, _weights, shipped_spec

    spec = shipped_spec(task, attention)  # type: ignore[arg-type]
    spec = spec.replace(optimizer=spec.optimizer.replace(accumulation_steps=1))
    model = build_model(spec, attention=attention, dropout=0.0, device=ranks.device)
    load_weights(model, _weights(spec))
    model.train()
    engine = Engine(spec, model, ranks, steps=3, precision="fp32", part="probe")
    for step in range(3):
        engine.step(step, _batch(spec, step))
    return digest_tensors(dict(engine.bare.named_parameters()))[:16]


def _child(attention: str, *, onednn: bool) -> None:
    import torch
    import transformers

    from plumbline.digest import digest_json
    from plumbline.schema.spec import ProbeSpec
    from plumbline.train.numerics import apply_settings
    from plumbline.train.portable.leg import PortableLeg
    from plumbline.train.ranks import join_ranks
    from plumbline.train.selfcheck import _Drawn, _weights, shipped_spec

    torch.backends.mkldnn.enabled = onednn  # type: ignore[assignment]
    apply_settings("fp32", strict=True, part="probe")
    result: dict[str, Any] = {}
    with join_ranks() as ranks:
        for task in ("sequence-classification", "masked-lm"):
            spec = shipped_spec(task, attention)  # type: ignore[arg-type]
            leg = PortableLeg(_Drawn(spec, ranks, _weights(spec)), ProbeSpec.model_validate(spec.probe))
            leg.run()
            leg.compare_processes()
            assert leg.evidence is not None
            assert leg.evidence.repeated
            assert not leg.evidence.unportable
            result[task] = {
                "portable": digest_json([step.to_json() for step in leg.evidence.steps])[:16],
                "native": _native(task, attention, ranks),
            }
        if ranks.is_first:
            versions = {"torch": torch.__version__, "transformers": transformers.__version__}
            isa = torch.backends.cpu.get_cpu_capability()
            print("RESULT " + json.dumps({"tasks": result, "isa": isa, **versions}))


def _run(name: str, setting: dict[str, Any], path: list[str]) -> dict[str, Any]:
    program = [str(Path(__file__)), "--child", *setting.get("arguments", [])]
    processes = setting.get("processes", 1)
    start = [setting.get("python", sys.executable)] if processes == 1 else [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
    ]  # fmt: skip
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *path]), "HF_HUB_OFFLINE": "1", **setting.get("environment", {}),
    }  # fmt: skip
    try:
        done = subprocess.run(
            [*start, *program], env=environment, cwd=setting.get("cwd", ROOT), capture_output=True, text=True,
            timeout=300, check=False, user=setting.get("user"),
        )  # fmt: skip
    except PermissionError as error:
        return {"setting": name, "failed": f"{error.strerror}: {error.filename}"}
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
    if not line:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1][:300]
        return {"setting": name, "failed": reason}
    return {"setting": name, **json.loads(line.removeprefix("RESULT "))}


def main() -> None:
    """Run every setting, count the digests, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--transformers", type=Path, nargs="*", default=[])
    parser.add_argument("--torch", type=Path, nargs="*", default=[])
    parser.add_argument("--nobodys-python", default=sys.executable)
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--attention", default="eager")
    parser.add_argument("--without-onednn", action="store_true")
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.attention, onednn=not arguments.without_onednn)
        return
    packages = [sysconfig.get_path("purelib")] if arguments.nobodys_python != sys.executable else []
    settings: list[tuple[str, dict[str, Any], list[str]]] = [
        (name, {**item, "python": arguments.nobodys_python}, packages) if "user" in item else (name, item, [])
        for name, item in SETTINGS.items()
    ]
    settings += [(folder.name, {}, [str(folder)]) for folder in (*arguments.transformers, *arguments.torch)]
    known = json.loads(arguments.out.read_text())["rows"] if arguments.out.is_file() else []
    rows = {row["setting"]: row for row in known if "failed" not in row}
    for name, setting, path in settings:
        if name in rows:
            continue
        rows[name] = row = _run(name, setting, path)
        print(json.dumps(row), file=sys.stderr, flush=True)
        counts = {
            f"{task} {kind}": dict(Counter(row["tasks"][task][kind] for row in rows.values() if "tasks" in row))
            for task in ("sequence-classification", "masked-lm")
            for kind in ("portable", "native")
        }
        document = {"counts": counts, "rows": list(rows.values())}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print({key: len(value) for key, value in counts.items()})


if __name__ == "__main__":
    main()
