"""`python -m bench.capture.others --work DIR`: the same pairs of trainings under Plumbline, msProbe and DebugMode.

Beside a reference: attention in single steps instead of one kernel, on the same machine and, honest, on another one;
a GELU of another formula; another rate from step 2 on. msProbe is installed into DIR/venv. torch's DebugMode is no
public API, and is used here alone. The table is `bench/results/capture-others.json`.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

HERE = Path(__file__).parent
WIDTH, STEPS = 64, 4
SIDES: dict[str, dict[str, Any]] = {
    "reference": {}, "other-kernel": {"kernel": "eager"}, "tanh-GELU": {"approximate": "tanh"}, "rate": {"rate": 1e-3},
    "honest": {"kernel": "eager"},
}  # fmt: skip
"""By name, what differs from the reference; the honest one runs on another instruction set, too.

msProbe refuses a path with a space.
"""
MACHINES = {"avx512": [*SIDES][:-1], "avx2": ["honest"]}
"""Instruction set of torch's kernels, by which a process begins."""


class Block(nn.Module):
    """Block of a decoder."""

    def __init__(self, kernel: str, approximate: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.given, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self._kernel, self._approximate = kernel, approximate

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the block's output, [rows, length, width]."""
        query, key, value = self.given(self.norms[0](hidden)).chunk(3, dim=-1)
        if self._kernel == "eager":
            hidden_by = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril().logical_not()
            scores = query @ key.transpose(-2, -1) / WIDTH**0.5
            mixed = functional.softmax(scores.masked_fill(hidden_by, float("-inf")), dim=-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed)
        inner = functional.gelu(self.up(self.norms[1](hidden)), approximate=self._approximate)
        return hidden + self.down(inner)


@contextmanager
def plumbline_record(folder: Path, model: nn.Module, optimizer: Any) -> Iterator[Any]:
    """Record by `plumbline.capture`."""
    import plumbline

    with plumbline.capture(folder, model, optimizer, steps=STEPS, seed=7) as run:
        yield run.step


@contextmanager
def msprobe_record(folder: Path, model: nn.Module, _optimizer: Any) -> Iterator[Any]:
    """Record modules and calls of every step by msProbe's statistics."""
    from msprobe.pytorch import PrecisionDebugger  # type: ignore[import-not-found]

    folder.mkdir(parents=True)
    own = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    settings = {"task": "statistics", "dump_path": str(folder), "rank": [], "step": [], "level": "mix"}
    (folder / "config.json").write_text(json.dumps(settings | {"statistics": own}))
    debugger = PrecisionDebugger(config_path=str(folder / "config.json"))

    def step() -> None:
        debugger.stop()
        debugger.step()
        debugger.start(model=model)

    debugger.start(model=model)
    yield step
    debugger.stop()


@contextmanager
def debugmode_record(folder: Path, _model: nn.Module, _optimizer: Any) -> Iterator[Any]:
    """Record the log of operations, with hashes of their tensors."""
    from torch.utils._debug_mode import DebugMode

    folder.mkdir(parents=True)
    with DebugMode(record_nn_module=True) as mode, DebugMode.log_tensor_hashes(hash_inputs=True):
        yield lambda: None
    (folder / "log").write_text(mode.debug_string())


TOOLS = {"plumbline": plumbline_record, "msprobe": msprobe_record, "debugmode": debugmode_record}


def train(tool: str, folder: Path, kernel: str = "sdpa", approximate: str = "none", rate: float = 2e-3) -> None:
    """Train a decoder of two blocks under a tool."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    blocks = [Block(kernel, "none"), Block(kernel, approximate)]
    model = nn.Sequential(nn.Embedding(96, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with TOOLS[tool](folder, model, optimizer) as ends:
        for step in range(STEPS):
            if step == 2:
                optimizer.param_groups[0]["lr"] = rate
            ids = torch.randint(0, 96, (8, 33))
            loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ends()


def record(tool: str, folder: Path, sides: Iterable[str]) -> None:
    """Record sides under a tool, each in a process of its own; torch is loaded once."""
    for side in sides:
        child = os.fork()
        if not child:
            train(tool, folder / side, **SIDES[side])
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"{tool}: {side}: the training failed")


def install(work: Path) -> Path:
    """Return a Python with msProbe and with what this one has."""
    python = work / "venv" / "bin" / "python"
    if not (work / "venv" / "bin" / "msprobe").exists():
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
        own = sysconfig.get_paths()["purelib"]
        place = next((work / "venv" / "lib").glob("python*")) / "site-packages" / "_outer.pth"
        place.write_text(f"import site; site.addsitedir({own!r})\n")
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)
    return python


def of_plumbline(work: Path, side: str) -> dict[str, Any]:
    """Return what Plumbline says of a pair."""
    import plumbline

    pair = [plumbline.read_record(work / "plumbline" / each) for each in ("reference", side)]
    judgement = plumbline.compare(*pair, throughput=False)
    at = judgement.first_divergence
    tensors = len(pair[1].record.evidence.probe.taps)
    return {
        "compared": tensors, "flagged": sum(each.outcome != "pass" for each in judgement.findings),
        "first": f"step {at.step}, {at.stage} of {at.at}" if at else "", "verdict": judgement.verdict,
        "cause": ", ".join(f"{each.code} ({each.sure})" for each in judgement.causes),
    }  # fmt: skip


def of_msprobe(work: Path, side: str) -> dict[str, Any]:
    """Return what `msprobe compare` says of a pair, over all steps."""
    rows, first = dict.fromkeys(("pass", "warning", "error"), 0), ""
    for step in range(STEPS):
        ours, theirs = (work / "msprobe" / each / f"step{step}" for each in (side, "reference"))
        out = work / "msprobe" / f"{side}-step{step}"
        command = [work / "venv" / "bin" / "msprobe", "compare", "-tp", ours, "-gp", theirs, "-o", out]
        subprocess.run(command, check=True, capture_output=True)
        with next(out.glob("*.csv")).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                result = row["Result"].strip()
                rows[result] = rows.get(result, 0) + 1
                if result != "pass" and not first:
                    first = f"step {step}, {row['NPU Name']}: {result}"
    flagged = sum(rows.values()) - rows["pass"]
    return {"compared": sum(rows.values()), "flagged": flagged, "results": rows, "first": first, "verdict": "none"}


def of_debugmode(work: Path, side: str) -> dict[str, Any]:
    """Return how the logs of a pair differ; DebugMode itself compares nothing."""
    ours, theirs = ((work / "debugmode" / each / "log").read_text().splitlines() for each in ("reference", side))
    changes = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    changed = [each for each in changes if each[0] != "equal"]
    place = changed[0][3] if changed else 0
    module = next((line.strip() for line in reversed(theirs[:place]) if "[nn.Mod]" in line), "")
    first = f"line {place + 1}, {module}: {theirs[place].split('#')[0].strip()}" if changed else ""
    flagged = sum(max(end - begin, last - first) for _, begin, end, first, last in changed)
    return {"compared": len(ours), "flagged": flagged, "first": first, "verdict": "none"}


SAID = {"plumbline": of_plumbline, "msprobe": of_msprobe, "debugmode": of_debugmode}


def main() -> None:
    """Record each side under each tool, and write what they say."""
    from bench.faults.results import FOLDER, write_result

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for msProbe's environment and the records")
    work = parser.parse_args().work.resolve()
    rows = []
    for tool, said in SAID.items():
        shutil.rmtree(work / tool, ignore_errors=True)
        try:
            python = install(work) if tool == "msprobe" else Path(sys.executable)
            for machine, sides in MACHINES.items():
                where = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "ATEN_CPU_CAPABILITY": machine}
                command = [python, __file__, tool, work / tool, *sides]
                subprocess.run(command, env=where, check=True, capture_output=True, text=True)
        except (subprocess.CalledProcessError, OSError) as error:
            last = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
            print(f"{tool} is missing or does not run: {last}", file=sys.stderr)
            rows += [{"pair": side, "tool": tool, "problem": last[:300]} for side in SIDES if side != "reference"]
            continue
        rows += [{"pair": side, "tool": tool, **said(work, side)} for side in SIDES if side != "reference"]
    for row in rows:
        print(json.dumps(row))
    versions = {
        "torch": torch.__version__,
        "msprobe": (HERE / "requirements.txt").read_text().rpartition("==")[2].strip(),
    }
    write_result(FOLDER / "capture-others.json", "python -m bench.capture.others --work DIR", rows, versions=versions)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in TOOLS:
        record(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
