"""Production leg: a few steps at the settings of `speed`, against the portable leg and the definitions.

Dropout is off, as masks of fused kernels cannot be repeated elsewhere. One process trains the whole global batch. Where
an error is beyond what the format explains, the step is repeated with one choice exchanged after the other, until the
error is gone: that choice is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.schema.production import (
    ProcessReplay,
    ProductionEvidence,
    ProductionStep,
    ProductionTap,
    ProductionTrial,
)
from plumbline.schema.sketch import relative_error
from plumbline.schema.spec import ProbeSpec, SpeedSpec
from plumbline.schema.tolerance import floor_of, production_limit, relative
from plumbline.train.batches import Batch, of_one_process
from plumbline.train.context import Context
from plumbline.train.digests import finite, host_array, norms
from plumbline.train.engine import Engine, Observer, StepOutcome, read_losses
from plumbline.train.numerics import apply_settings, seed_generators
from plumbline.train.portable.leg import PortableLeg
from plumbline.train.production.cancellation import Contributions, of_single_sequences, typical_errors
from plumbline.train.production.choices import Choices, compile_model, make_engine, plain_choices
from plumbline.train.ranks import Ranks
from plumbline.train.summaries import is_summarizing, summarize, summarizing
from plumbline.train.taps import ModuleTaps, TapBook, module_taps, named_gradients
from plumbline.train.update import UpdateCheck

_LEAST_DECAY = 64 * 2.0**-24
"""Minimum of learning rate times weight decay in the leg, so that the decay is above the rounding of the weights."""
_ZERO = 1e-9
"""Share of the largest gradient below which the portable leg shows a gradient that is zero by mathematics, such as that
of attention's key biases: at production settings it is rounding only."""
_MOST_PROCESSES = 8
_MOST_KINDS = 4
"""Maximum number of classes of modules that are exchanged one after the other."""


class _Operators(TorchDispatchMode):
    """Mode that lists the native operators called below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_summarizing():
            self.names.add(str(func.name()).removeprefix("aten::").removesuffix(".default"))
        return func(*args, **(kwargs or {}))


class _ProductionObserver(Observer):
    """Observer that taps the first step, and checks the loss, the clipping and the update of each."""

    def __init__(self, engine: Engine, *, tapped: bool, checked: bool) -> None:
        self.engine, self._tapped = engine, tapped
        self.book, self.steps = TapBook(), list[ProductionStep]()
        self._update = UpdateCheck(engine) if checked else None
        self._taps: ModuleTaps | None = None
        self._step = 0
        self._seen: dict[str, Any] = {}
        self._logits: list[Any] = []
        self._labels: list[Any] = []
        self._about: tuple[str, torch.dtype] = ("", torch.float32)

    def starts(self, step: int) -> None:
        self._step, self._logits, self._labels = step, [], []
        if step == 0 and self._tapped:
            self._taps = module_taps(self.engine, self.book, step)

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        self._labels.append(host_array(local["labels"]))
        if self._taps:
            # Micro-batches are packed into different numbers of rows: only the first is tapped.
            self._taps.feeds(0 if self.engine.padding == "packed" else len(local["labels"]))

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        if self._taps:
            self._taps.forward_done()
        self._logits.append(host_array(self.engine.unpacked(outputs.logits)))
        self._about = (type(self.engine.bare).__name__, outputs.logits.dtype)
        self._seen["loss_dtype"] = str(loss.dtype).removeprefix("torch.")

    def _norm(self) -> float:
        with summarizing():
            return math.sqrt(sum(length**2 for length in norms(named_gradients(self.engine.bare).values())))

    def backward_done(self) -> None:
        self._seen["gradient_norm"] = self._norm()
        if self._step:
            return
        if self._taps:
            self._taps.summarise()
            self._taps.close()
            self._taps = None
        else:
            kind, dtype = self._about
            with summarizing():
                logits = torch.from_numpy(self._whole(self._logits))
            summary = replace(summarize([logits], "signed")[0], dtype=dtype)
            self.book.add(0, "forward", "model", summary, kind=kind, leaf=False)
        self.book.add_parameters(0, "gradient", self.engine.bare, named_gradients(self.engine.bare))

    def _whole(self, pieces: list[Any]) -> Any:
        import numpy as np

        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]

    def clipped(self) -> None:
        self._seen["gradient_norm_clipped"] = self._norm()
        if self._update:
            self._update.before()

    def done(self, outcome: StepOutcome) -> None:
        update, norm = self._update, self._seen["gradient_norm"]
        skipped = update is not None and self.engine.scaler is not None and not math.isfinite(norm)
        errors = [] if update is None or skipped else list(update.errors(outcome.learning_rates))
        sizes = read_losses([error for _, error in errors])
        order = [math.inf if math.isnan(size) else size for size in sizes]
        worst = order.index(max(order)) if order else None
        loss = outcome.loss(self.engine.ranks)
        definition = self.engine.task.autocast_loss
        reference = definition(self._whole(self._logits), self._whole(self._labels), self._about[1], loss)
        self.steps.append(
            ProductionStep(
                step=self._step,
                loss=finite(loss),
                loss_dtype=self._seen["loss_dtype"],
                loss_reference=finite(reference),
                gradient_norm=finite(self._seen["gradient_norm"]),
                gradient_norm_clipped=finite(self._seen["gradient_norm_clipped"]),
                skipped=skipped,
                update_excess=None if update is None else 0.0 if worst is None else finite(sizes[worst]),
                update_at="" if worst is None else errors[worst][0],
            )
        )


@dataclass(frozen=True)
class _Pass:
    """Taps and steps of some steps under one set of choices."""

    book: TapBook
    steps: tuple[ProductionStep, ...]
    operators: tuple[str, ...] = ()
    is_cut: bool = False
    """Whether batches were cut at their longest row, or packed."""

    @property
    def bits(self) -> list[Any]:
        """Return what an equal run repeats: losses, norms, and the digests of the first gradients."""
        numbers = [(step.loss, step.gradient_norm, step.gradient_norm_clipped) for step in self.steps]
        return [numbers, [(tap.name, tap.sha256) for tap in self.book.taps if tap.stage == "gradient"]]


@dataclass(frozen=True, slots=True)
class _Excess:
    """First error beyond its limit."""

    stage: str
    name: str
    kind: str
    error: float | None
    limit: float


class ProductionLeg:
    """Replay of the first steps at production settings."""

    def __init__(self, context: Context, speed: SpeedSpec, probe: ProbeSpec, portable: PortableLeg) -> None:
        self._context, self._speed, self._probe, self._portable = context, speed, probe, portable
        taps = [
            (tap, made) for tap, made in zip(portable.book.taps, portable.book.sketches, strict=True) if not tap.step
        ]
        largest = max((tap.norm or 0.0 for tap, _ in taps if tap.stage == "gradient"), default=0.0)
        self._anchor = {
            (tap.stage, tap.name): (made, tap.norm, tap.shape)
            for tap, made in taps
            if tap.stage != "gradient" or (tap.norm or 0.0) > _ZERO * largest
        }
        decay = context.spec.optimizer.weight_decay
        self._rate = max(context.spec.optimizer.learning_rate, min(_LEAST_DECAY / decay, 0.01) if decay else 0.0)
        self._envelopes: dict[tuple[str, str], float | None] = {}
        self.evidence: ProductionEvidence | None = None

    def _pass(self, choices: Choices, *, steps: int = 1, tapped: bool = True, listed: bool = False) -> _Pass:
        """Train `steps` steps from the initial weights; one process takes all micro-batches."""
        context = self._context
        if context.ranks.device.type == "cuda":
            context.release()
        apply_settings(choices.speed.precision, strict=False, part="speed", speed=choices.speed)
        spec, alone = of_one_process(context.spec, context.ranks.world), Ranks(device=context.ranks.device)
        seed_generators(spec.seed)
        engine = make_engine(context, spec, choices, dropout=0.0, steps=steps, ranks=alone)
        self._hold_rate(engine)
        # Hooks of a checkpointed module would run again in the backward pass.
        tapped = tapped and not choices.speed.gradient_checkpointing
        observer = engine.observer = _ProductionObserver(engine, tapped=tapped, checked=choices.rounded is None)
        compile_model(engine, choices.speed)
        mode = _Operators() if listed else None
        try:
            for step, batch in enumerate(context.batches(first=0, count=steps, cycle=self._probe.steps)):
                if mode is not None:
                    with mode:
                        engine.step(step, batch)
                else:
                    engine.step(step, batch)
        finally:
            # Break the cycle of both, which would keep the model alive.
            del observer.engine, observer._update  # noqa: SLF001 - of this module
        names = tuple(sorted(mode.names)) if mode else ()
        return _Pass(observer.book, tuple(observer.steps), names, is_cut=engine.padding != "fixed")

    def _hold_rate(self, engine: Engine) -> None:
        for group in engine.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = self._rate
        engine.schedule = torch.optim.lr_scheduler.LambdaLR(engine.optimizer, lambda _: 1.0)

    def alone(self) -> _Pass:
        """Replay the steps in this process, whichever it is: each trains the whole global batch."""
        steps = self._speed.production_steps
        return self._pass(Choices(self._speed), steps=steps, tapped=not self._speed.compile)

    def add_processes(self, passes: Sequence[_Pass | None]) -> None:
        """Keep the replays of other processes, by rank, that are beyond a limit of the first process."""
        assert self.evidence is not None  # noqa: S101 - this process has replayed
        found = tuple(
            ProcessReplay(rank=rank, steps=run.steps, taps=tuple(self._taps(run, self._envelopes)))
            for rank, run in enumerate(passes)
            if run is not None and self._is_off(run)
        )
        self.evidence = self.evidence.replace(processes=found[:_MOST_PROCESSES])

    def _is_off(self, run: _Pass) -> bool:
        limit = floor_of("loss", "fp32")
        wrong = any(not relative(step.loss_reference, step.loss) <= limit for step in run.steps if not step.skipped)
        return wrong or next(self._excesses(run, self._envelopes), None) is not None

    def run(self) -> None:
        """Replay, measure what the format explains, and exchange choices where that is exceeded."""
        choices, compiled, found = Choices(self._speed), self._speed.compile, self.alone()
        again = self._pass(choices, steps=len(found.steps), tapped=False, listed=not compiled)
        envelope = self._envelopes = self._envelope(plain_choices(self._speed))
        loss = self._loss_error(found)
        self.evidence = ProductionEvidence(
            steps=found.steps,
            taps=tuple(self._taps(found, envelope)),
            repeated=found.bits == again.bits,
            operators=again.operators[:1000],
            loss_error=loss,
            loss_envelope=envelope.get(("loss", "loss")),
            learning_rate=self._rate,
            trials=tuple(self._trials(choices, found, envelope)),
        )

    def _envelope(self, plain: Choices) -> dict[tuple[str, str], float | None]:
        """Return the errors that the format explains: those of one rounded run, or the typical ones where larger."""
        errors = self._errors(self._pass(plain))
        if plain.rounded in ("fp32", "fp64"):
            return errors
        own = {name: error for (stage, name), error in errors.items() if stage == "gradient"}
        norms = {name: size for (stage, name), (_, size, _) in self._anchor.items() if stage == "gradient"}
        for name, error in typical_errors(own, self._apart(plain), norms).items():
            key = ("gradient", name)
            errors[key] = max(errors.get(key) or 0.0, error)
        return errors

    def _apart(self, plain: Choices) -> dict[str, float]:
        """Return the norms of the sequences' own gradients, summed in squares."""
        context = self._context
        spec = of_single_sequences(context.spec)
        engine = make_engine(
            context, spec, replace(plain, rounded=None), dropout=0.0, steps=1, ranks=Ranks(device=context.ranks.device)
        )
        contributions = engine.observer = Contributions(engine.bare)
        engine.step(0, next(iter(context.batches(first=0, count=1, cycle=self._probe.steps))))
        return contributions.norms()

    def _loss_error(self, run: _Pass) -> float | None:
        """Return the relative error of the first loss against the portable leg."""
        exact, loss = self._portable.losses[0], run.steps[0].loss
        return None if loss is None or not exact else abs(loss - exact) / abs(exact)

    def _errors(self, run: _Pass) -> dict[tuple[str, str], float | None]:
        """Return the relative error of each tensor against the portable leg, and of the loss."""
        errors: dict[tuple[str, str], float | None] = {}
        for tap, sketched in zip(run.book.taps, run.book.sketches, strict=True):
            anchor = self._anchor.get((tap.stage, tap.name))
            if anchor is not None:
                is_alike = tap.shape == anchor[2]
                if run.is_cut and not is_alike:
                    continue  # the portable leg has the columns of padding, too
                errors[tap.stage, tap.name] = relative_error(anchor[0], sketched, anchor[1]) if is_alike else None
        return errors | {("loss", "loss"): self._loss_error(run)}

    def _taps(self, run: _Pass, envelope: dict[tuple[str, str], float | None]) -> Iterator[ProductionTap]:
        errors = self._errors(run)
        for tap in run.book.taps:
            key = (tap.stage, tap.name)
            if key in errors and tap.stage != "weight":
                yield ProductionTap(
                    stage=tap.stage, name=tap.name, kind=tap.kind, dtype=tap.dtype, norm=tap.norm, sha256=tap.sha256,
                    error=errors[key], envelope=envelope.get(key),
                )  # fmt: skip

    def _excesses(self, run: _Pass, envelope: dict[tuple[str, str], float | None]) -> Iterator[_Excess]:
        """Yield the errors beyond their limits: outputs, loss, gradients from the loss backwards, update."""
        taps = list(self._taps(run, envelope))
        ordered = [tap for tap in taps if tap.stage == "forward"]
        backwards = [tap for tap in reversed(taps) if tap.stage == "gradient"]
        for tap in (*ordered, *backwards):
            limit = production_limit(tap.envelope, tap.stage, self._speed.precision)
            if tap.error is None or not tap.error <= limit:
                yield _Excess(tap.stage, tap.name, tap.kind, tap.error, limit)
        worst = max(run.steps, key=lambda step: math.inf if step.update_excess is None else step.update_excess)
        if worst.update_excess is None or worst.update_excess > 1.0:
            yield _Excess("update", worst.update_at, "", worst.update_excess, 1.0)

    def _trials(
        self, choices: Choices, run: _Pass, envelope: dict[tuple[str, str], float | None]
    ) -> Iterator[ProductionTrial]:
        """Exchange choices until no error is beyond its limit; keep each exchange that helped."""
        kinds = 0
        if choices.speed.compile and next(self._excesses(run, envelope), None) is not None:
            run = self._pass(choices, steps=len(run.steps))
        while (first := next(self._excesses(run, envelope), None)) is not None:
            for change, other in self._exchanges(choices, first):
                after = self._pass(other, steps=len(run.steps) if first.stage == "update" else 1)
                still = list(self._excesses(after, envelope))
                is_update = first.stage == "update"
                gone = not any(e.stage == first.stage and (is_update or e.name == first.name) for e in still)
                yield ProductionTrial(
                    change=change, stage=first.stage, name=first.name, before=first.error,
                    after=self._error_of(after, first), limit=min(first.limit, 1e99),
                )  # fmt: skip
                if gone:
                    choices, run = other, after
                    break
            else:
                return
            kinds += 1
            if kinds >= _MOST_KINDS:
                return

    def _error_of(self, run: _Pass, first: _Excess) -> float | None:
        if first.stage == "update":
            found = [step.update_excess for step in run.steps]
            return None if None in found else max(value for value in found if value is not None)
        return self._errors(run).get((first.stage, first.name))

    def _exchanges(self, choices: Choices, first: _Excess) -> Iterator[tuple[str, Choices]]:
        """Yield the exchanges that may remove an error, the likeliest first."""
        if first.stage == "update":
            if not choices.single_tensor:
                single = choices.change(fused_optimizer=False, foreach_optimizer=False)
                yield "optimizer=single-tensor", replace(single, single_tensor=True)
            return
        speed, kind = choices.speed, first.kind
        is_short = speed.precision in {"bf16", "fp16"}
        is_narrow = is_short and speed.reduced_precision_reduction and self._context.ranks.device.type == "cuda"
        for change, is_in_use, keys in (
            ("compile=off", speed.compile, {"compile": False}),
            ("attention=eager", speed.attention != "eager", {"attention": "eager"}),
            ("tf32=off", speed.tf32, {"tf32": False}),
            # The forward pass is the same with checkpoints.
            (
                "gradient_checkpointing=off", speed.gradient_checkpointing and first.stage == "gradient",
                {"gradient_checkpointing": False},
            ),
            ("padding=fixed", speed.padding != "fixed", {"padding": "fixed"}),
            ("reduced_precision_reduction=off", is_narrow, {"reduced_precision_reduction": False}),
        ):  # fmt: skip
            if is_in_use:
                yield change, choices.change(**keys)
        if is_short and kind and kind not in choices.in_fp32:
            yield f"{kind}=fp32", replace(choices, in_fp32=(*choices.in_fp32, kind))
        if speed.precision != "fp32":
            plain = {"attention": "eager"} if speed.attention == "flash_attention_2" else {}
            yield "precision=fp32", replace(choices.change(precision="fp32", compile=False, **plain), in_fp32=())
