"""Tiny numpy training with a record like the trainer's, breakable at every rung."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_array, digest_json
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.record import RunRecord
from plumbline.schema.sketch import mark, sketch
from plumbline.schema.spec import RunSpec
from plumbline.schema.step_log import COLUMNS

STEPS, BATCH, LENGTH, WIDTH, LABELS = 6, 4, 8, 16, 2
ROWS, EVALUATION_ROWS, SHARD = 24, 6, 8
PROOFS = ({"step": 0, "errors": (), "tensors": 1},)
MODULES = (("embed", "Embedding"), ("layer.linear", "Linear"), ("layer.norm", "LayerNorm"), ("head", "Linear"))
GENERATORS = {"python": "1" * 16, "numpy": "2" * 16}
SETTINGS = {"class": "AdamW", "betas.0": 0.9, "betas.1": 0.999, "eps": 1e-8}
PARAMETERS = {"embed.weight": (32, WIDTH), "layer.linear.weight": (WIDTH, WIDTH), "head.weight": (WIDTH, LABELS)}


def set_step(log: dict[str, Any], step: int, values: dict[str, Any]) -> None:
    """Set values of one step in a log's columns, by the names of `LoggedStep`; `None` leaves out a checksum."""
    for name, value in values.items():
        if name == "batch":
            for key, each in value.items():
                log["batches"][key] = _placed(log["batches"].get(key, ()), step, each)
        elif name == "generators":
            known = log["generators"]
            log["generators"] = {
                key: _summed(known.get(key, ()), step, value.get(key)) for key in dict.fromkeys((*known, *value))
            }
        elif name == "weights":
            log["weights"] = _summed(log["weights"], step + 1, value)
        else:
            column = COLUMNS.get(name, name)
            log[column] = _placed(log.get(column, ()), step, value)


def set_all(log: dict[str, Any], **values: Any) -> None:
    """Set values of all steps."""
    for step in range(len(log["losses"])):
        set_step(log, step, values)


def cut_to(log: dict[str, Any], count: int) -> None:
    """Keep the first `count` steps of a log."""
    for name in COLUMNS.values():
        log[name] = log[name][:count]
    log["batches"] = {name: marks[:count] for name, marks in log["batches"].items()}
    log["weights"] = [each for each in log["weights"] if each[0] <= count]
    log["generators"] = {name: [each for each in sums if each[0] < count] for name, sums in log["generators"].items()}


def with_log(made: LoadedRecord, change: Callable[[dict[str, Any]], None]) -> LoadedRecord:
    """Return the record with a changed log of its probe."""
    content = made.record.model_dump()
    change(content["evidence"]["probe"])
    return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)


def _placed(column: Sequence[Any], step: int, value: Any) -> list[Any]:
    is_left_out = value is None and any(isinstance(each, str) for each in column)
    return [*column[:step], *([] if is_left_out else [value]), *column[step + 1 :]]


def _summed(column: Sequence[Any], done: int, value: Any) -> list[Any]:
    return sorted([*(each for each in column if each[0] != done), *([] if value is None else [(done, value)])])


@dataclass
class Plan:
    """Changes of a test before the training."""

    texts: list[int] = field(default_factory=lambda: list(range(1000, 1000 + ROWS + EVALUATION_ROWS)))
    labels: list[int] = field(default_factory=lambda: [row % LABELS for row in range(ROWS + EVALUATION_ROWS)])
    order: list[int] = field(default_factory=lambda: list(range(ROWS)))
    tokenizer: str = "a" * 64
    ids_shift: int = 0
    seed: int = 1
    dtype: str = "float32"
    noise: dict[str, float] = field(default_factory=dict)
    """Relative error of a module's output, from the step of its name (`layer.norm@2`) or from 0 on."""
    systematic: bool = True
    loss_factor: float = 1.0
    loss_shows_from: int = 0
    """The first step at which the factor shows in the loss itself; in the gradients it always does."""
    gradient_factor: float = 1.0
    gradient_factor_at: int | None = None
    """A step whose gradients are doubled."""
    gradient_sign: float = 1.0
    """What the head's gradient is multiplied by after clipping, unseen by its record."""
    clip: float = 1.0
    rates: list[float] = field(default_factory=lambda: [1e-3 * (step + 1) for step in range(STEPS)])
    decay: float = 0.01
    update_factor: dict[int, float] = field(default_factory=dict)
    weights_seed: int = 5
    evaluation_mode: bool = False
    evaluation_rows: int = EVALUATION_ROWS
    tap_steps: tuple[int, ...] = (0, 2, STEPS - 1)
    has_windows: bool = True
    """Whether the probe has windows."""
    portable: dict[str, str | None] = field(default_factory=dict)
    """Digests of windows by `step/kind/name` that are not the reference's."""
    portable_sketches: dict[str, float] = field(default_factory=dict)
    """First number of a window's sketch, by `STEP/STAGE NAME`; all others are 1, gradients of `head` 1e-6."""
    has_portable_sketches: bool = False
    repeated: bool = True
    hidden: bool = False
    fingerprint: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(repr(self))


def spec() -> RunSpec:
    return RunSpec(
        workload="unit",
        task="sequence-classification",
        model={
            "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": WIDTH,
            "max_position_embeddings": 16, "vocab_size": 32, "num_labels": LABELS, "weights_key": "weights/x",
            "weights_sha256": "b" * 64,
        },
        data={"name": "unit", "manifest_sha256": "c" * 64, "sequence_length": LENGTH},
        seed=1,
        batch_size=BATCH,
        probe={"steps": STEPS, "tap_steps": (0, 2), "evaluation_rows": EVALUATION_ROWS, "portable_steps": 0},
    )  # fmt: skip


def _portable(plan: Plan) -> dict[str, Any]:
    """Return two windows of a probe, changed by the plan."""

    def digests(step: int, kind: str, names: list[str]) -> list[tuple[str, str | None]]:
        return [
            (name, plan.portable.get(f"{step}/{kind}/{name}", digest_json([step, kind, name])[:16])) for name in names
        ]

    def sketches(step: int) -> list[tuple[str, list[float]]]:
        names = [f"forward {name}" for name, _ in MODULES if step == 0]
        names += [f"{stage} {name}" for stage in ("gradient", "clipped", "optimizer") for name in PARAMETERS]
        size = {name: 1e-6 if name == "gradient head.weight" else 1.0 for name in names}
        return [
            (name, [plan.portable_sketches.get(f"{step}/{name}", size[name]), *[0.0] * 7])
            for name in names
            if plan.has_portable_sketches
        ]

    windows = [
        {
            "step": step, "sketches": sketches(step),
            "loss": plan.portable.get(f"{step}/loss", "0x1.8p-1" if plan.loss_factor == 1 else plan.loss_factor.hex()),
            "outputs": digests(step, "outputs", [name for name, _ in MODULES]) if step == 0 else [],
            "gradients": digests(step, "gradients", list(PARAMETERS)),
            "clipped": digests(step, "clipped", list(PARAMETERS)),
            "weights": digests(step, "weights", list(PARAMETERS)),
        }
        for step in range(2)
    ]  # fmt: skip
    return {"windows": windows, "repeated": plan.repeated}


def _product(left: Any, right: Any) -> Any:
    """Multiply in fp64, so that no processor's kernels show in fp32."""
    return (left.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)


class _Training:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        generator = np.random.default_rng(plan.weights_seed)
        self.weights = {n: generator.normal(0, 0.1, shape).astype(np.float32) for n, shape in PARAMETERS.items()}
        self.initial = copy.deepcopy(self.weights)
        self.taps: list[dict[str, Any]] = []
        self.sketches: list[Any] = []
        self.log: dict[str, Any] = {"weights": [], "generators": {}, "batches": {}, "dropout": ()}
        self.batches: dict[str, list[Any]] = {name: [] for name in BATCH_FIELDS}

    def tap(self, step: int, stage: str, name: str, kind: str, array: Any) -> None:
        if step not in self.plan.tap_steps:
            return
        self.taps.append({
            "step": step, "stage": stage, "name": name, "kind": kind, "dtype": self.plan.dtype,
            "shape": array.shape, "norm": float(np.linalg.norm(array.astype(np.float64))),
            "sha256": digest_array(array),
        })  # fmt: skip
        self.sketches.append(sketch(array))

    def disturbed(self, step: int, name: str, value: Any) -> Any:
        for key, size in self.plan.noise.items():
            module, _, start = key.partition("@")
            if module == name and step >= int(start or 0):
                wave = np.random.default_rng(step).normal(size=value.shape)
                value = (value + size * np.abs(value).mean(dtype=np.float64) * wave).astype(np.float32)
        return value

    def batch(self, rows: list[int]) -> dict[str, Any]:
        plan = self.plan
        texts = np.array([plan.texts[row] for row in rows])
        ids = (texts[:, None] * np.arange(1, LENGTH + 1) + plan.ids_shift) % 31 + 1
        ones, zeros = np.ones((len(rows), LENGTH), np.int64), np.zeros((len(rows), LENGTH), np.int64)
        return {
            "row_ids": np.array(rows), "input_ids": ids, "attention_mask": ones, "token_type_ids": zeros,
            "labels": np.array([plan.labels[row] for row in rows]),
        }  # fmt: skip

    def forward(self, step: int, ids: Any) -> tuple[dict[str, Any], Any]:
        out, value = {}, None
        for name, _ in MODULES:
            if name == "embed":
                value = self.weights["embed.weight"][ids].mean(axis=1, dtype=np.float64).astype(np.float32)
            elif name == "layer.linear":
                value = _product(value, self.weights["layer.linear.weight"])
            elif name == "layer.norm":
                wide = value.astype(np.float64)
                value = ((wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)).astype(np.float32)
            else:
                value = _product(value, self.weights["head.weight"])
            value = out[name] = self.disturbed(step, name, value)
        return out, value

    def step(self, step: int) -> None:
        plan = self.plan
        fields = self.batch([plan.order[(step * BATCH + place) % len(plan.order)] for place in range(BATCH)])
        for name in BATCH_FIELDS:
            self.batches[name].append(fields[name])
        outputs, logits = self.forward(step, fields["input_ids"])
        for name, kind in MODULES:
            self.tap(step, "forward", name, kind, outputs[name])
        scores = logits.astype(np.float64)
        chance = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        true_loss = float(-np.log(chance[np.arange(BATCH), fields["labels"]]).mean())
        slope = (chance - np.eye(LABELS)[fields["labels"]]).astype(np.float32)
        mean, spread = (np.float32(made(slope, dtype=np.float64)) for made in (np.mean, np.std))
        factor = np.float32(plan.gradient_factor * plan.loss_factor * (2.0 if step == plan.gradient_factor_at else 1.0))
        gradients = {
            "embed.weight": self.weights["embed.weight"] * mean * factor * 10,
            "layer.linear.weight": _product(outputs["embed"].T, outputs["layer.linear"]) * spread * factor,
            "head.weight": _product(outputs["layer.norm"].T, slope) * factor,
        }
        norm = float(np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values())))
        for name, value in gradients.items():
            self.tap(step, "gradient", name, "Linear", value)
        share = np.float32(min(1.0, plan.clip / norm))
        for name, value in gradients.items():
            share_of_it = share * np.float32(plan.gradient_sign if name == "head.weight" else 1.0)
            change = np.float32(plan.rates[step] * plan.update_factor.get(step, 1.0)) * value * share_of_it
            decay = np.float32(plan.rates[step] * plan.decay * plan.update_factor.get(step, 1.0))
            self.weights[name] = self.weights[name] - change - decay * self.weights[name]
            self.tap(step, "optimizer", name, "Linear", self.weights[name])
        shown = plan.loss_factor if step >= plan.loss_shows_from else 1.0
        seeded = GENERATORS | {"torch": digest_json([plan.seed, 0])[:16]}
        set_step(self.log, step, {
            "num_rows": BATCH, "batch": {name: mark(fields[name]) for name in BATCH_FIELDS}, "generators": seeded,
            "is_training": True, "logits": digest_array(logits)[:16], "logits_dtype": plan.dtype,
            "loss": true_loss * shown, "loss_dtype": plan.dtype, "defined_loss": true_loss, "gradient_norm": norm,
            "clipped_norm": min(norm, plan.clip), "learning_rate": plan.rates[step], "loss_scale": None,
            "gradients": digest_json({n: digest_array(g) for n, g in gradients.items()})[:16],
            "weights": digest_json({n: digest_array(w) for n, w in self.weights.items()})[:16],
        })  # fmt: skip


def make_record(plan: Plan | None = None, **changes: Any) -> LoadedRecord:
    """Return the record of one training; `changes` are fields of `Plan`."""
    made = _trained(plan or Plan(**changes))
    return LoadedRecord(made.record, made.folder, copy.deepcopy(dict(made.arrays)))


@functools.lru_cache(maxsize=128)  # a third of the time of the judge's tests: most train by one of a few plans
def _trained(plan: Plan) -> LoadedRecord:
    training = _Training(plan)
    for step in range(STEPS):
        training.step(step)
    count = len(plan.texts) - EVALUATION_ROWS
    rows = list(range(count, count + plan.evaluation_rows))
    fields = training.batch(rows)
    _, logits = training.forward(STEPS, fields["input_ids"])
    # As the trainer does: it reads all rows that the spec asks for, whatever its evaluation uses.
    read = np.array(sorted(set(plan.order[: STEPS * BATCH]) | set(range(count, count + EVALUATION_ROWS))))
    texts, labels = (np.array([values[row] for row in read], np.uint64) for values in (plan.texts, plan.labels))
    parameters = [
        {"name": n, "shape": w.shape, "dtype": plan.dtype, "sha256": digest_array(w)}
        for n, w in training.initial.items()
    ]
    modules = [(name, plan.modules.get(name, f"{kind}()")) for name, kind in MODULES]
    shards = []
    for start, end in [(start, min(start + SHARD, count)) for start in range(0, count, SHARD)] + [(count, None)]:
        content = [plan.texts[start:end], plan.labels[start:end]]
        shards.append({
            "key": f"{'train' if end else 'evaluation'}/{start // SHARD}.parquet", "size": 1,
            "sha256": digest_json([start, content]), "num_rows": len(content[0]),
        })  # fmt: skip
    manifest_sha256 = digest_json(shards)
    shards = [shard | {"rows_sha256": shard["sha256"]} for shard in shards]
    evidence = {
        "data": {
            "manifest_sha256": manifest_sha256, "tokenizer_sha256": plan.tokenizer,
            "rows_sha256": digest_json([read.tolist(), texts.tolist(), labels.tolist()]), "num_rows": len(read),
            "shards": shards,
        },
        "model": {
            "parameters": parameters, "modules": modules,
            "weights_sha256": digest_json([p["sha256"] for p in parameters]),
        },
        "probe": {
            **training.log, "taps": training.taps, "portable": _portable(plan) if plan.has_windows else None,
            "optimizer": [{
                "settings": SETTINGS | {"lr": plan.rates[0], "weight_decay": plan.decay},
                "parameters": list(PARAMETERS),
            }],
            "evaluation": {
                "step": STEPS, "num_rows": len(rows), "rows_sha256": digest_array(np.array(rows)),
                "training_mode": plan.evaluation_mode, "predictions_sha256": digest_array(logits.argmax(1)),
                "logits_sha256": digest_array(logits), "loss": float(np.abs(logits).mean()), "accuracy": 0.5,
            },
            "recounted": (float(np.abs(logits).mean()), 0.5), "proofs": PROOFS,
        },
    }  # fmt: skip
    fingerprint = {
        "hostname": "h", "os": "Linux", "python": "3.11", "plumbline": "0",
        "cpu": {"model": "m", "isa": "AVX2", "num_cores": 2, "num_threads": 1}, "packages": {"torch": "2.13.0"},
    } | plan.fingerprint  # fmt: skip
    now = datetime(2026, 11, 1, tzinfo=UTC)
    content = {
        "record_id": "unit", "platform": "left", "spec_sha256": spec().digest, "spec": spec().to_json(),
        "started_at": now, "finished_at": now, "fingerprint": fingerprint, "evidence": evidence,
        "exit": {"status": "completed"},
    } | plan.record  # fmt: skip
    arrays = {
        "batches": {name: np.stack(steps) for name, steps in training.batches.items()},
        "sketches": {"sketch": np.stack(training.sketches)},
        "rows": {"row_id": read, "text": texts, "label": labels},
        "evaluation": {"row_ids": np.array(rows), "predictions": logits.argmax(1), "logits": logits},
        "state": {f"rng/{step}": np.array([plan.seed], np.uint8) for step in range(STEPS)},
        "capture": {},
    }
    return LoadedRecord(RunRecord.model_validate(content), Path("unit"), arrays)


def other_kernel() -> dict[str, Any]:
    """Return a fingerprint that explains different rounding."""
    return {"cpu": {"model": "m", "isa": "AVX512", "num_cores": 2, "num_threads": 1}}


@pytest.fixture(scope="session")
def reference() -> LoadedRecord:
    return make_record()
