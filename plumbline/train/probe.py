"""Probe: a short, strictly deterministic training with full evidence."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.digest import SHORT_DIGITS, digest_array, digest_json
from plumbline.schema.evidence import (
    BATCH_FIELDS,
    SKETCH_SIZE,
    ModelEvidence,
    PortableEvidence,
    ProbeEvidence,
    Tap,
)
from plumbline.schema.proof import Proof
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.schema.stage import TAPPED, Stage
from plumbline.train.batches import Batch, of_probe
from plumbline.train.compat.transformers import attention_of
from plumbline.train.context import Context, auxiliary
from plumbline.train.digests import finite, host_array
from plumbline.train.engine import Engine, Observer, StepOutcome
from plumbline.train.evaluation import RESULTS, Recount, evaluate
from plumbline.train.failure import MODULE_ERRORS
from plumbline.train.models.description import describe_model
from plumbline.train.models.model import build_model, fit_activations, load_weights
from plumbline.train.numerics import (
    apply_settings,
    fresh_memory_filled,
    pack_states,
    read_states,
    seed_generators,
)
from plumbline.train.optimizers import describe_optimizer
from plumbline.train.portable.probe_windows import ProbeWindows
from plumbline.train.proof.steps import Prover
from plumbline.train.replay import Keeper
from plumbline.train.watch.recorder import Recorder, Tensors
from plumbline.train.watch.step_log import StepLogger
from plumbline.train.watch.summaries import Summary
from plumbline.train.watch.taps import ModuleTaps


def tap_steps(probe: ProbeSpec, steps: int) -> list[int]:
    """Return the steps with recorded tensor sketches, including the last step."""
    return sorted({step for step in probe.tap_steps if step < steps} | {steps - 1})


_OWN_COLUMNS = (
    "is_training", "logits", "logits_dtype", "loss_dtype", "defined_losses", "gradients", "gradient_norms",
    "clipped_norms", "loss_scales",
)  # fmt: skip


class ProbeBook(ModuleTaps):
    """Book of the tensors of some steps, and of the log's columns that only the probe has."""

    def __init__(self, engine: Engine, steps: Collection[int], keeper: Keeper | None = None) -> None:
        super().__init__(engine, steps, keeper, unsigned=False)
        self.engine, self._modules = engine, dict[str, nn.Module]()
        self.columns: dict[str, list[Any]] = {name: [] for name in _OWN_COLUMNS}
        self.taps: list[Tap] = []
        self.sketches: list[NDArray[np.float64]] = []
        self.batches: dict[str, list[NDArray[Any]]] = {name: [] for name in BATCH_FIELDS}
        self.states: dict[str, NDArray[np.uint8]] = {}
        self._found: dict[str, Any] = {}
        self._logits: list[NDArray[Any]] = []

    def starts(self, step: int, model: nn.Module) -> None:
        """Record random generator states, and start recording tensors if due."""
        self.states[f"rng/{step}"] = pack_states(read_states())
        self._found = {"is_training": all(module.training for module in model.modules())}
        self._logits = []
        super().starts(step, model)
        self.keeper.keep_all("weights", step, dict(model.named_parameters()))

    def feeds(self, local: Batch) -> None:
        """Record the micro-batch as the device received it."""
        self.fed += [local[name].clone() for name in BATCH_FIELDS]
        super().feeds(local)

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """Record the logits, and the dtypes of logits and loss."""
        super().forward_done(outputs, loss)
        self._logits.append(host_array(outputs.logits))
        self._found["logits_dtype"] = str(outputs.logits.dtype).removeprefix("torch.")
        self._found["loss_dtype"] = str(loss.dtype).removeprefix("torch.")

    def _globally(self, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Concatenate all processes' micro-batches in the first process."""
        return self.engine.ranks.concatenate(np.concatenate(arrays) if len(arrays) > 1 else arrays[0])

    def _tap(self, stage: Stage, name: str, summary: Summary) -> None:
        owner = name.rpartition(".")[0]
        module = self._modules[name] if stage == "forward" else self.engine.bare.get_submodule(owner)
        self.sketches.append(summary.sketch)
        dtype, is_leaf = str(summary.dtype).removeprefix("torch."), next(module.children(), None) is None
        self.taps.append(
            Tap(
                step=self.step, stage=stage, name=name, kind=type(module).__name__, dtype=dtype, shape=summary.shape,
                norm=finite(summary.norm), sha256=summary.sha256, leaf=is_leaf,
            )
        )  # fmt: skip

    def see(self, name: str, module: nn.Module, inputs: Any, value: torch.Tensor) -> None:
        """Summarize a module's output."""
        self._modules.setdefault(name, module)
        super().see(name, module, inputs, value)

    def is_sketched(self, stage: Stage) -> bool:
        """Return whether tensors of a stage are sketched: at tapped steps alone."""
        return self.step in self.steps and stage != "clipped"

    def keep(self, stage: Stage, tensors: Tensors) -> None:
        """Summarize gradients and weights."""
        self.keeper.keep_all(stage, self.step, tensors)
        if stage != "optimizer" or self.step in self.steps:  # the log has a checksum of the weights
            super().keep(stage, tensors)

    def done(self, outcome: StepOutcome, loss: float) -> None:
        """Complete the step's columns and tensors."""
        super().done(outcome, loss)
        engine, found, self._found = self.engine, self._found, {}
        for stage in TAPPED if self.step in self.steps else ():
            for name, summary in self.kept[stage].items():
                self._tap(stage, name, summary)
        fields = {
            name: self._globally(self.read[place :: len(BATCH_FIELDS)]) for place, name in enumerate(BATCH_FIELDS)
        }
        logits = self._globally(self._logits)
        for name, array in fields.items():
            self.batches[name].append(array)
        norms = [_norm(self.kept[stage]) for stage in ("gradient", "clipped")]
        skipped = not np.isfinite(norms[0]) and engine.scaler is not None
        found |= {
            "logits": digest_array(logits)[:SHORT_DIGITS], "gradients": _digest(self.kept["gradient"]),
            "defined_losses": finite(engine.task.reference_loss(logits, fields["labels"])),
            "gradient_norms": None if skipped else finite(norms[0]),
            "clipped_norms": None if skipped else finite(norms[1]),
            "loss_scales": float(engine.scaler.get_scale()) if engine.scaler else None,
        }  # fmt: skip
        for name, values in self.columns.items():
            values.append(found[name])

    def close(self) -> None:
        """Release the engine and model; keep the evidence."""
        del self.engine, self._modules


def _norm(gradients: Mapping[str, Summary]) -> float:
    return math.sqrt(sum(each.norm**2 for each in gradients.values()))


def _digest(tensors: Mapping[str, Summary]) -> str:
    return digest_json({name: each.sha256 for name, each in tensors.items()})[:SHORT_DIGITS]


class ProbeRun:
    """One probe run; its evidence stays readable after a failure."""

    def __init__(self, context: Context, probe: ProbeSpec) -> None:
        self.context, self.probe, self.steps = context, probe, probe.steps
        self.model_evidence: ModelEvidence | None = None
        self.keeper = Keeper()
        self.book: ProbeBook | None = None
        self.log: StepLogger | None = None
        self.evaluation: dict[str, NDArray[Any]] = {}
        self._found: dict[str, Any] = {"optimizer": (), "evaluation": None, "recounted": None, "portable": None}

    def _engine(self) -> Engine:
        context, probe = self.context, self.probe
        settings = apply_settings(probe.precision, strict=True, part="probe")
        model = build_model(context.spec, attention=probe.attention, dropout=0.0, device=context.ranks.device)
        load_weights(model, context.weights)
        context.note("probe", settings | {"precision": probe.precision, "attention": attention_of(model)})
        model.train()
        spec = of_probe(context.spec, context.ranks.world)
        self._fit(model, spec)
        engine = Engine(spec, model, context.ranks, steps=probe.steps, precision=probe.precision, part="probe")
        context.measure("probe", engine, probe.evaluation_rows, self._evaluated_at_once)
        # A library may change settings as it computes: what was measured leaves nothing behind.
        apply_settings(probe.precision, strict=True, part="probe")
        return engine

    def _fit(self, model: nn.Module, spec: RunSpec) -> None:
        """Enable activation checkpointing if activations are too large."""
        fit_activations(model, spec, self.context.ranks, torch.float32)

    def _changed(self, engine: Engine, recorder: Observer) -> Observer:  # noqa: ARG002 - for experiments
        """Return the recorder; experiments wrap it in an intervention."""
        return recorder

    @property
    def _evaluated_at_once(self) -> int:
        """Return the evaluation's batch size in rows."""
        return min(self.probe.micro_batch or self.context.spec.batch_size, self.context.spec.batch_size)

    def _evaluate(self, engine: Engine) -> None:
        recount = Recount(engine.task)
        with recount.watching(engine.bare):
            evidence, self.evaluation = self._evaluator()(
                engine.bare, self.context.evaluation_rows(self.probe.evaluation_rows), task=engine.task,
                step=self.steps, batch_size=self._evaluated_at_once, precision=self.probe.precision,
                device=self.context.ranks.device,
            )  # fmt: skip
        self._found |= {"evaluation": evidence, "recounted": recount.metrics()}

    def _evaluator(self) -> Callable[..., Any]:
        return evaluate

    def _train(self) -> None:
        """Build the model, train, evaluate, then free the model."""
        context, probe = self.context, self.probe
        engine = self._engine()
        self.model_evidence = describe_model(engine.bare)
        self._found["optimizer"] = describe_optimizer(engine.bare, engine.optimizer)
        book = self.book = ProbeBook(engine, tap_steps(probe, self.steps), self.keeper)
        log = self.log = StepLogger(engine, whole=True)
        engine.observer = Observer(self._changed(engine, Observer(log, Recorder(engine, book))))
        prover = Prover(engine, context.proven("probe"))
        seed_generators(context.spec.seed)
        for step, batch in enumerate(context.batches(first=0, count=self.steps, cycle=probe.steps)):
            context.emit("probe", step, self.steps)
            with fresh_memory_filled() if step == 0 else contextlib.nullcontext():
                prover.train(step, batch)
            engine.check(step, log.read()[-1])
        prover.finish()
        self._found["proofs"] = tuple(map(Proof.model_validate, prover.proofs))
        if context.ranks.is_first:
            self._evaluate(engine)
        book.close()
        log.close()
        engine.observer = Observer()

    def run(self) -> None:
        """Train the probe, then repeat its steps in fp64."""
        self._train()
        if not self.probe.portable_steps:
            return
        windows, found, lost = ProbeWindows(self.context, self.probe), None, dict[str, str]()
        with auxiliary("lost", self.context, lost, MODULE_ERRORS):
            found = windows.run()
        is_whole = found is not None and not lost
        self._found["portable"] = windows.compared(found) if is_whole else PortableEvidence(windows=(), **lost)

    def evidence(self) -> ProbeEvidence:
        """Return the evidence recorded so far."""
        columns = self.log.log() | self.book.columns if self.log and self.book else {}
        return ProbeEvidence(**columns, taps=tuple(self.book.taps) if self.book else (), **self._found)

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the record's safetensors contents by file stem."""
        book = self.book
        if book is None or self.log is None or not self.log.columns["losses"]:
            return {}
        # A step that failed behind its training is not in the log.
        held = len(self.log.columns["losses"])
        batches = {name: np.stack(steps[:held]) for name, steps in book.batches.items()}
        parts: dict[str, dict[str, NDArray[Any]]] = {
            "batches": {name: _compact(array) for name, array in batches.items()},
            "sketches": {"sketch": np.reshape(book.sketches, (-1, SKETCH_SIZE))},
            "state": dict(book.states),
        }
        if self.evaluation:
            parts["evaluation"] = {name: self.evaluation[name] for name in RESULTS}
        return parts


def _compact(array: NDArray[Any]) -> NDArray[Any]:
    """Convert to int32 if all values fit; row numbers stay int64."""
    fits = array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)
    return array.astype(np.int32) if fits and array.ndim > 2 else array
