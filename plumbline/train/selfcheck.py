"""`python -m plumbline.train.selfcheck`: train a tiny BERT, and compare with shipped numbers.

The training runs in fp64, and draws weights and rows from integer hashes: it needs no store, no file and no
second machine. A learning curve on the road of a real training follows. The output is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import transformers

from plumbline.data.staging.order import random_keys
from plumbline.environments.interpreter import is_tested, tested_range
from plumbline.schema.digest import SHORT_DIGITS
from plumbline.schema.errors import ExitCode, PlumblineError
from plumbline.schema.evidence import PortableEvidence, PortableWindow, SelfcheckEvidence
from plumbline.schema.portable_parts import window_parts
from plumbline.schema.spec import Attention, ModelSpec, ProbeSpec, RunSpec
from plumbline.schema.task import Task, has_row_labels
from plumbline.train.batches import Batch
from plumbline.train.failure import MODULE_ERRORS
from plumbline.train.models.model import build_on_meta, named_once
from plumbline.train.numerics import apply_settings
from plumbline.train.portable.probe_windows import ProbeWindows
from plumbline.train.ranks import Ranks
from plumbline.train.selfcheck_learn import learn_difference

_TASKS: Mapping[str, Task] = {"row": "sequence-classification", "token": "masked-lm"}
"""The shipped training for each kind of label."""
_KINDS = {"forward": "outputs", "loss": "loss", "gradient": "gradients", "optimizer": "weights"}
_STEPS, _ROWS, _LENGTH, _VOCABULARY = 3, 8, 16, 96


def shipped_spec(task: Task, attention: Attention = "eager") -> RunSpec:
    """Return the spec of the bundled tiny training."""
    model = ModelSpec(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32,
        vocab_size=_VOCABULARY, num_labels=2 if has_row_labels(task) else None,
        weights_key="drawn", weights_sha256="0" * 64,
    )  # fmt: skip
    return RunSpec.model_validate({
        "workload": "selfcheck", "task": task, "model": model,
        "data": {"name": "drawn", "manifest_sha256": "0" * 64, "sequence_length": _LENGTH}, "seed": 1,
        "batch_size": _ROWS, "optimizer": {"accumulation_steps": 2, "max_grad_norm": 0.5},
        "probe": ProbeSpec(steps=_STEPS, portable_steps=_STEPS, attention=attention),
    })  # fmt: skip


def _drawn(count: int, *name: str | int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return pseudo-random numbers in [-1/16, 1/16), exact multiples of 2**-24."""
    whole = (random_keys(count, "selfcheck", *name) >> np.uint64(43)).astype(np.int64) - (1 << 20)
    return (whole.astype(np.float64) / 2**24).astype(np.float32)


def shipped_weights(spec: RunSpec) -> dict[str, torch.Tensor]:
    """Return the weights of the bundled tiny training, by parameter."""
    parameters = named_once(build_on_meta(spec.model, spec.task))
    weights = {}
    for name, parameter in parameters.items():
        shape = tuple(parameter.shape)
        values = _drawn(int(np.prod(shape)), name).reshape(shape)
        weights[name] = torch.from_numpy(values + np.float32(1) if name.endswith("LayerNorm.weight") else values)
    return weights


def shipped_batch(spec: RunSpec, step: int) -> Batch:
    """Return one step's batch of the bundled tiny training."""
    keys = random_keys(2 * _ROWS * _LENGTH, "rows", step).reshape(2, _ROWS, _LENGTH) >> np.uint64(33)
    ids, chosen = (keys % np.uint64(_VOCABULARY - 5)).astype(np.int64) + 5
    lengths = _LENGTH - np.arange(_ROWS) % 5
    mask = (np.arange(_LENGTH) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask == 1, ids, 0)
    labels = ids[:, 0] % 2 if has_row_labels(spec.task) else np.where(chosen % 6 == 0, ids, -100)
    segments = (np.arange(_LENGTH) >= _LENGTH // 2).astype(np.int64) * mask
    fields = {"row_ids": np.arange(_ROWS), "input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in {**fields, "labels": labels}.items()}


@dataclass
class ShippedTraining:
    """Rows and weights of the bundled tiny training, as run context."""

    spec: RunSpec
    ranks: Ranks
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    draw: str = ""

    def batches(self, *, first: int, count: int, cycle: int | None = None) -> Iterator[Batch]:  # noqa: ARG002
        """Yield the batches of `count` steps."""
        return (shipped_batch(self.spec, step) for step in range(first, first + count))

    def release(self) -> None:
        """Do nothing: the model is tiny."""


def trained(task: Task, device: torch.device, attention: Attention, *, steps: int = _STEPS) -> PortableEvidence:
    """Train the bundled model's first steps in fp64."""
    spec = shipped_spec(task, attention)
    probe = ProbeSpec(steps=_STEPS, portable_steps=steps, attention=attention)
    training = ShippedTraining(spec, Ranks(device=device), shipped_weights(spec))
    return ProbeWindows(training, probe).run(repeat=steps == _STEPS)


def golden_windows() -> dict[str, tuple[PortableWindow, ...]]:
    """Return the expected numbers of the bundled training, by task."""
    shipped = json.loads(files("plumbline.train.portable").joinpath("golden.json").read_bytes())
    return {task: tuple(map(golden_window, steps)) for task, steps in shipped.items()}


def golden_window(step: dict[str, Any]) -> PortableWindow:
    """Return a shipped step as a window, whose sketches alone are compared."""
    named: dict[str, list[tuple[str, str]]] = {stage: [] for stage in ("forward", "gradient", "optimizer")}
    for key in step["sketches"]:
        stage, _, name = key.partition(" ")
        named[stage].append((name, "0" * SHORT_DIGITS))  # of no tensor: the sketches decide
    return PortableWindow.model_validate({
        "step": step["step"], "loss": step["loss"], "outputs": named["forward"], "gradients": named["gradient"],
        "weights": named["optimizer"], "sketches": tuple(step["sketches"].items()),
    })  # fmt: skip


def first_difference(right: tuple[PortableWindow, ...], found: tuple[PortableWindow, ...]) -> str:
    """Return the first difference of `found` from the expected numbers, or ""."""
    for expected, step in zip(right, found, strict=False):
        # Versions of torch clip in other orders: the weights show it. A module that only some versions call, such as a
        # dropout of rate zero, changes no output around it.
        known = dict(expected.outputs)
        outputs = tuple(output for output in step.outputs if output[0] in known)
        for stage, name in window_parts(expected, step.replace(clipped=expected.clipped, outputs=outputs)):
            return f"{_KINDS[stage]} of step {expected.step}: {name}"
    return "" if len(right) == len(found) else "the number of steps"


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def _formulas() -> str:
    return ", ".join(f"{name} {tested_range(name)}" for name in _versions())


def judge_windows(sides: dict[Task, PortableEvidence], steps: int = _STEPS) -> tuple[str, dict[str, str]]:
    """Compare with the expected numbers; return verdict and first differences by task.

    Equal numbers prove the formulas, whatever the versions. Different ones are a fault only of tested versions; others
    are `unknown`.
    """
    golden = golden_windows()
    found = {task: first_difference(golden[task][:steps], side.windows) for task, side in sides.items()}
    differences = {task: at for task, at in found.items() if at}
    known = all(is_tested(name, version) for name, version in _versions().items())
    return "pass" if not differences else "drift" if known else "unknown", differences


def selfcheck(device: torch.device, attention: Attention = "eager") -> dict[str, Any]:
    """Run the self-check; return the verdict, with each task's first wrong number."""
    began = time.perf_counter()
    apply_settings("fp32", strict=True, part="probe")
    sides = {task: trained(task, device, attention) for task in _TASKS.values()}
    judged, differences = judge_windows(sides)
    repeated = all(side.repeated for side in sides.values())
    verdict = judged if repeated else "drift"
    learned = learn_difference(device)
    cause = "device" if not repeated else "operator" if verdict == "drift" else "software" if learned else ""
    return {
        "verdict": "drift" if learned else verdict,
        "cause": cause,
        "first_divergence": differences | ({"learn": learned} if learned else {}),
        "formulas": _formulas(),
        **_versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "seconds": time.perf_counter() - began,
        "steps": {task: list(map(shown_window, side.windows)) for task, side in sides.items()},
    }


def shown_window(window: PortableWindow) -> dict[str, Any]:
    """Return the numbers of a window that a release ships, with 15 digits.

    Versions of torch clip in other orders, so that clipped gradients are no part.
    """
    shown = {key: [float(f"{number:.15g}") for number in sketch] for key, sketch in window.sketches}
    sketches = {key: sketch for key, sketch in shown.items() if not key.startswith("clipped ")}
    return {"step": window.step, "loss": window.loss, "sketches": sketches}


def first_step(device: torch.device, task: Task) -> SelfcheckEvidence:
    """Train one step of the bundled model, and compare its numbers."""
    task = _TASKS["row" if has_row_labels(task) else "token"]
    apply_settings("fp32", strict=True, part="probe")
    try:
        found = trained(task, device, "eager", steps=1)
    except MODULE_ERRORS as error:
        return SelfcheckEvidence(verdict="unknown", at=str(error)[:500])
    verdict, differences = judge_windows({task: found}, steps=1)
    at = differences.get(task, "")
    if verdict == "unknown":
        at = f"{at}, compared with the nearest formulas: {_formulas()}"
    return SelfcheckEvidence.model_validate({"verdict": verdict, "at": at[:500]})


_CODES = {"pass": ExitCode.PASS, "drift": ExitCode.DRIFT}


def main(argv: list[str] | None = None) -> int:
    """Run the self-check, print its JSON document, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m plumbline.train.selfcheck", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--first-step", action="store_true", help="train one step, and print the verdict alone")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
    arguments = parser.parse_args(argv)
    try:
        if arguments.first_step:
            device = torch.device(arguments.device)
            evidence = first_step(device, _TASKS["row"])
            if evidence.verdict != "drift" and (at := learn_difference(device)):
                evidence = SelfcheckEvidence(verdict="drift", at=at)
            sys.stdout.write(evidence.model_dump_json() + "\n")
            return int(_CODES.get(evidence.verdict, ExitCode.INCONCLUSIVE))
        document = selfcheck(torch.device(arguments.device), arguments.attention)
    except PlumblineError as error:
        sys.stderr.write(f"plumbline: {error}\n")
        return int(error.exit_code)
    sys.stdout.write(json.dumps(document) + "\n")
    return int(_CODES.get(document["verdict"], ExitCode.INCONCLUSIVE))


if __name__ == "__main__":
    sys.exit(main())
