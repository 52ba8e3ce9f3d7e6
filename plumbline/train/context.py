"""State that all parts of a training run share."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from plumbline.data.staging.order import Plan
from plumbline.schema.base import Scalar
from plumbline.schema.errors import StoppedError
from plumbline.schema.evidence import NativeOperation
from plumbline.schema.portable_parts import proof_places
from plumbline.schema.spec import RunSpec
from plumbline.train.batches import Batch, EvaluationRows, TrainingRows, make_loader, of_probe
from plumbline.train.compat.transformers import attention_function
from plumbline.train.engine import Engine
from plumbline.train.failure import OUT_OF_MEMORY, is_out_of_memory
from plumbline.train.machine.mantissa import measure_attention, measure_mantissa_bits
from plumbline.train.machine.native_operations import layer_shapes, measure_operations
from plumbline.train.portable.products import training_products
from plumbline.train.ranks import Ranks
from plumbline.train.rows import Rows


@dataclass
class Context:
    """State of a run: spec, processes, rows, weights and settings."""

    spec: RunSpec
    ranks: Ranks
    out: Path
    plan: Plan
    rows: Rows
    weights: dict[str, torch.Tensor]
    stop: threading.Event
    draw: str = ""
    """What a round asks of all its trainings, and of no other night's; empty without a round."""
    is_checked: bool = True
    """Whether steps are proven, watched and repeated in windows; those of an experiment are not."""
    numerics: dict[str, Scalar] = field(default_factory=dict)
    operations: dict[str, tuple[NativeOperation, ...]] = field(default_factory=dict)
    mantissa_bits: dict[str, int] = field(default_factory=dict)
    place: tuple[str, int | None] = ("", None)

    def stopping(self) -> bool:
        """Return whether any process was asked to stop.

        All processes must end at the same step: a single stopped process and the others would wait for each other for
        ever.
        """
        return self.ranks.anyone(self.stop.is_set())

    def emit(self, part: str, step: int, steps: int, *, stopping: bool | None = None) -> None:
        """Emit a progress event; raise `StoppedError` if a stop was requested."""
        self.place = (part, step)
        if self.ranks.is_first:
            event = {"event": "progress", "part": part, "step": step, "steps": steps}
            sys.stderr.write(json.dumps(event) + "\n")
            sys.stderr.flush()
        if self.stopping() if stopping is None else stopping:
            raise StoppedError("stopped on request", where=f"{part} step {step}")

    def proven(self, part: str) -> tuple[int, ...]:
        """Return the steps of a training part to check against fp64."""
        return proof_places(self.spec, part, self.draw) if self.is_checked else ()

    def prepare(self, steps: int) -> None:
        """Tokenize the rows of the first `steps` steps in advance."""
        self.rows.prepare(self.plan.order.rows(range(steps * self.spec.batch_size)))

    def batches(self, *, first: int, count: int, cycle: int | None = None, **loading: Any) -> Iterator[Batch]:
        """Yield global batches from step `first` on; `loading` is passed to `make_loader`."""
        rows = TrainingRows(
            self.spec, self.rows, self.plan.order, first=first, count=count, cycle=cycle or first + count
        )
        return make_loader(rows, self.spec.batch_size, self.ranks.device, **loading)

    def evaluation_rows(self, count: int) -> EvaluationRows:
        """Return the first `count` rows of the evaluation split, or all rows."""
        return EvaluationRows(
            self.spec, self.rows, start=self.plan.first_evaluation_row,
            count=min(count, self.plan.num_evaluation_rows),
        )  # fmt: skip

    def release(self) -> None:
        """Free the memory of models that are no longer used.

        Torch's reference cycles keep memory until the next collection, and its allocator keeps blocks of the sizes
        requested.
        """
        gc.collect()
        if self.ranks.device.type == "cuda":
            torch.cuda.empty_cache()

    def measure(
        self, part: str, engine: Engine, evaluation_rows: int = 0, at_once: int = 0, *, compiled: bool = False
    ) -> None:
        """Measure rounding and mantissa bits of native operations for the fingerprint.

        The part evaluates `at_once` rows in a batch; 0 means those of a training batch.
        """
        evaluated = min(evaluation_rows, self.plan.num_evaluation_rows)
        self.operations[part] = measure_operations(engine, evaluated, at_once or self.spec.batch_size)
        found = measure_mantissa_bits(
            self.ranks.device, engine.precision, training_products(of_probe(self.spec)),
            [(inner, columns) for inner, columns in layer_shapes(engine.bare)[0].values()], compiled=compiled,
        )  # fmt: skip
        attend = attention_function(engine.bare) if part != "learn" else None  # its windows measure it
        if attend is not None:
            found |= measure_attention(attend, self.ranks.device, engine.precision)
        self.keep_bits(part, found)
        group = engine.optimizer.param_groups[0]
        self.note(part, {f"optimizer.{name}": group.get(name) for name in ("fused", "foreach")})
        if self.ranks.device.type == "cuda":
            torch.cuda.empty_cache()

    def keep_bits(self, part: str, found: dict[str, int]) -> None:
        """Record measured mantissa bits of operators for the fingerprint."""
        self.mantissa_bits |= {name if part == "probe" else f"{part}.{name}": bits for name, bits in found.items()}

    def note(self, part: str, settings: dict[str, Any]) -> None:
        """Record a training part's settings for the fingerprint."""
        self.numerics |= {f"{part}.{name}": value for name, value in settings.items()}


@contextlib.contextmanager
def auxiliary(
    name: str, context: Context, lost: dict[str, str], caught: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Run an optional check; on out-of-memory, record the reason in `lost[name]`.

    The reason may also be one of the errors `caught`. The check may contain no collective operation: a process that has
    lost its check takes part in none of them.
    """
    place, reason = context.place, ""
    try:
        yield
    except Exception as error:
        if not (is_out_of_memory(error) or isinstance(error, caught)):
            raise
        reason = str(error)[:500] or OUT_OF_MEMORY
        context.place = place
    reasons = [text for text in context.ranks.gather(reason) if text]
    if reasons:
        lost[name] = reasons[0]
        context.release()  # Not earlier: the error's frames held the check's tensors until now.
