"""Self-consistency checks of a training, after its measured steps.

Without rounding, its formula is that of the plain model: a few rows are trained by the running engine and by a plain
one, both in fp64, where autocast casts nothing. Its kernels repeat themselves: one step is trained twice from the same
state. Kernels that no proof opens, of a compiler or of flash-attn, are beside the same model without them, whose
modules prove themselves; both are measured against fp64.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from plumbline.schema.production import KernelError, ProductionEvidence
from plumbline.schema.spec import SpeedSpec
from plumbline.train.batches import Batch, in_parts
from plumbline.train.context import Context, auxiliary
from plumbline.train.digests import finite
from plumbline.train.engine import Engine
from plumbline.train.engine_state import Start, borrowed
from plumbline.train.failure import MODULE_ERRORS, TrainingFailedError
from plumbline.train.models.dropout import without_dropout
from plumbline.train.models.families import attention_of_double
from plumbline.train.numerics import apply_settings
from plumbline.train.proof.modules import KINKED
from plumbline.train.proof.steps import Prover, has_fault
from plumbline.train.ranks import Ranks
from plumbline.train.speed_engine import compiled_form, make_engine
from plumbline.train.watch.recorder import Recorder
from plumbline.train.watch.step_values import ModuleValues, apart, backwards, differ
from plumbline.train.windows import few_rows


class OwnChecks:
    """Checks of one engine at production settings, run in every process."""

    def __init__(self, context: Context, speed: SpeedSpec, start: Start, proofs: list[dict[str, Any]]) -> None:
        """Prepare the checks; results are appended to `proofs`."""
        self._context, self._speed, self._start, self._proofs = context, speed, start, proofs
        self._alone = Ranks(device=context.ranks.device)

    def run(self, engine: Engine, opened: Callable[[], Engine], at: int, batch: Batch) -> ProductionEvidence:
        """Check the engine on one global batch; step numbers start at `at`.

        `opened` gives an engine that one process trains with checks of each module: the same one, as a rule.
        """
        lost: dict[str, str] = {}
        found, num = ProductionEvidence(), len(self._proofs)
        with auxiliary("checks", self._context, lost, (*MODULE_ERRORS, TrainingFailedError)):
            found = self._run(engine, opened(), at, batch)
        everyone = self._context.ranks.gather((found.to_json(), self._proofs[num:]))
        if lost:
            return ProductionEvidence(lost=lost["checks"])
        for place, proofs in enumerate(zip(*(proofs for _, proofs in everyone), strict=True), num):
            self._proofs[place] = next((proof for proof in proofs if has_fault(proof)), self._proofs[place])
        return _worst([ProductionEvidence.model_validate(checks) for checks, _ in everyone])

    def _run(self, engine: Engine, opened: Engine, at: int, batch: Batch) -> ProductionEvidence:
        engine = opened if engine.is_sharded else engine
        share = {name: values[self._context.ranks.slice(len(values))] for name, values in batch.items()}
        few, parts = few_rows(engine, 0, share), engine.spec.optimizer.accumulation_steps
        is_closed = engine.is_compiled or engine is not opened
        if is_closed:  # they are repeated to the share's shape
            rows = range(parts, len(few["labels"]) + 1, parts)
            most = max(num for num in rows if not len(share["labels"]) % num)
            few = {name: values[:most] for name, values in few.items()}
        self._prove(engine, at, share)
        unsteady = self._first_different(engine, share)
        exact = self._trained(opened, few, self._start_of(is_double=True))
        formula = self._beside_plain(exact, few)
        tiled = {name: values[torch.arange(len(share[name])) % len(values)] for name, values in few.items()}
        kernels = self._kernels(engine, opened, at, tiled, exact) if is_closed else ()
        return ProductionEvidence(
            formula=formula, repeated=unsteady is None, unsteady=unsteady or "", kernels=tuple(kernels)
        )

    def _start_of(self, *, is_double: bool) -> Start:
        return Start(self._start.weights, self._start.learning_rate, is_double)

    def _trained(
        self, engine: Engine, batch: Batch, start: Start, *, drops: bool = False,
        outputs: ModuleValues | None = None, compiled: nn.Module | None = None, proven: int | None = None,
    ) -> Recorder[torch.Tensor]:  # fmt: skip
        """Train one step from `start` in this process, and record its values.

        `compiled` is the compiled form of the model; `proven` numbers a step to check against fp64.
        """
        outputs, was_compiled = outputs or ModuleValues(engine), engine.is_compiled
        values = Recorder(engine, outputs, updates=not start.is_double)
        with contextlib.ExitStack() as stack:
            stack.enter_context(borrowed(engine, start, self._alone, values))
            stack.callback(setattr, engine, "is_compiled", was_compiled)
            engine.model = engine.bare if compiled is None else compiled
            engine.is_compiled = compiled is not None
            if not drops:
                stack.enter_context(without_dropout(engine.bare))
            if start.is_double:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                stack.enter_context(attention_of_double(engine.bare))
                if engine.padding != "packed":  # whose rows are not those of the batch
                    stack.enter_context(outputs.calls.hook(engine.bare))
            if proven is None:
                engine.step(0, batch)
            else:
                Prover(engine, (proven,), self._proofs).train(proven, batch)
        return values

    def _compiled(self, engine: Engine) -> nn.Module | None:
        """Return a compiled copy of the single-process model."""
        if not engine.is_compiled:
            return None
        is_alone = self._context.ranks.world == 1
        found: nn.Module = engine.model if is_alone else compiled_form(engine.bare, self._speed)
        return found

    def _prove(self, engine: Engine, at: int, batch: Batch) -> None:
        """Check one native step against fp64 definitions.

        At its rate an update shows the decay, which a warm-up's may hide below the rounding of the weights.
        """
        self._trained(engine, batch, self._start, compiled=self._compiled(engine), drops=True, proven=at)

    def _first_different(self, engine: Engine, batch: Batch) -> str | None:
        """Repeat a step; return the first tensor that differs."""
        compiled = self._compiled(engine)
        first = self._trained(engine, batch, self._start, compiled=compiled, drops=True)
        again = self._trained(engine, batch, self._start, compiled=compiled, drops=True)
        if (
            differ(first.kept["forward"]["logits"], again.kept["forward"]["logits"])
            or first.loss_value != again.loss_value
        ):
            return "loss"
        ours, theirs = first.kept["gradient"], again.kept["gradient"]
        everything = (*ours.values(), *theirs.values())
        if engine.scaler is not None and not all(bool(value.isfinite().all()) for value in everything):
            return None  # loss scaling skips such a step: no gradient of it is used, and NaN has no order of sums
        return next((name for name in reversed(list(ours)) if differ(ours[name], theirs[name])), None)

    def _beside_plain(self, exact: Recorder[torch.Tensor], few: Batch) -> tuple[tuple[str, float | None], ...]:
        """Measure errors of outputs, loss and gradients against an fp64 model."""
        spec, context = in_parts(self._context.spec, 1), self._context
        plain = SpeedSpec(steps=self._speed.steps, precision="fp64", attention="eager", fused_optimizer=False)
        apply_settings("fp64", strict=True, part="speed")
        try:
            engine = make_engine(context, spec, plain, dropout=0.0, steps=1, ranks=self._alone)
            engine.part = "probe"  # whose formula it is
            outputs = ModuleValues(engine, beside=exact.kept["forward"])
            known = self._trained(engine, few, self._start_of(is_double=True), outputs=outputs)
        finally:
            apply_settings(self._speed.precision, strict=False, part="speed", speed=self._speed)
        loss = abs(exact.loss_value - known.loss_value) / max(abs(known.loss_value), 1.0)
        found = [
            *((f"forward {name}", each) for name, each in outputs.gaps),
            ("loss loss", finite(loss)),
            *((f"gradient {name}", each) for name, each in backwards(exact.kept["gradient"], known.kept["gradient"])),
        ]
        return tuple(found)

    def _kernels(
        self, engine: Engine, opened: Engine, at: int, tiled: Batch, exact: Recorder[torch.Tensor]
    ) -> Iterator[KernelError]:
        """Yield the errors of compiled kernels and modules against fp64.

        The rows of `exact` are repeated to the shape that the training compiles for: the means are the same.
        """
        closed = self._trained(engine, tiled, self._start, compiled=self._compiled(engine))
        eager = self._trained(opened, tiled, self._start, proven=at + 1)
        logits, *others = (each.kept["forward"]["logits"] for each in (exact, closed, eager))
        others = [each[: len(logits)] for each in others]
        sizes = [apart({"logits": each}, {"logits": logits}) for each in others]
        is_kinked = any(isinstance(each, KINKED) for each in opened.bare.modules())
        slopes = [
            [] if is_kinked else backwards(each.kept["gradient"], exact.kept["gradient"]) for each in (closed, eager)
        ]
        for stage, found in (("forward", sizes), ("gradient", slopes)):
            for (name, error), (_, other) in zip(*found, strict=True):
                yield KernelError(stage=stage, name=name, error=error, eager=other)


def _worst(everyone: Sequence[ProductionEvidence]) -> ProductionEvidence:
    """Merge the checks of all processes, with the largest errors."""

    def size(error: float | None) -> float:
        return math.inf if error is None else error

    formula: dict[str, float | None] = {}
    kernels: dict[tuple[str, str], KernelError] = {}
    for checks in everyone:
        for name, error in checks.formula:
            formula[name] = max(formula.get(name, 0.0), error, key=size)
        for each in checks.kernels:
            key = (each.stage, each.name)
            kernels[key] = max(kernels.get(key, each), each, key=lambda each: size(each.error))
    off = next((checks for checks in everyone if not checks.repeated), everyone[0])
    return off.replace(formula=tuple(formula.items()), kernels=tuple(kernels.values()))
