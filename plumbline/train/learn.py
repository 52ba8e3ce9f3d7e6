"""Learning run: train to an evaluated accuracy, with checkpoints and portable dropout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from plumbline.schema.digest import SHORT_DIGITS, digest_array, digest_json
from plumbline.schema.evidence import LearnEvidence, WatchedEvent
from plumbline.schema.portable_parts import curve_places
from plumbline.schema.production import MAX_LOGGED
from plumbline.schema.spec import LearnSpec
from plumbline.train.checkpoint import (
    FOLDER,
    Progress,
    drop_checkpoints,
    load_checkpoint,
    read_moments,
    save_checkpoint,
)
from plumbline.train.compat.torch import default_compiler
from plumbline.train.compat.transformers import attention_of
from plumbline.train.context import Context
from plumbline.train.digests import digest_tensors, finite
from plumbline.train.engine import Engine, StepOutcome, read_losses
from plumbline.train.engine_state import Start
from plumbline.train.evaluation import RESULTS, Recount, evaluate
from plumbline.train.failure import TrainingFailedError
from plumbline.train.models.dropout import DropoutClock, PortableDropout, use_portable_dropout
from plumbline.train.models.families import PORTABLE_DROPOUT
from plumbline.train.models.model import build_model, load_weights
from plumbline.train.numerics import apply_settings, digest_states, read_states, seed_generators
from plumbline.train.proof.steps import Prover
from plumbline.train.tasks import IGNORED
from plumbline.train.watch.state_watch import StateWatch
from plumbline.train.windows import WindowRunner, WindowSetting, window_rows

_READ_EVERY = 50
_ROWS_TO_CHOOSE_FROM = 64


class LearnRun:
    """One training run to an evaluated accuracy."""

    def __init__(self, context: Context, learn: LearnSpec) -> None:
        self.context, self.learn, self.until = context, learn, learn.steps
        self._progress = Progress(0, [], [], [])
        self._pending: list[tuple[int, StepOutcome]] = []
        self._model: torch.nn.Module | None = None
        self._masks = DropoutClock(context.spec.seed)
        self._windows: WindowRunner | None = None
        self._watch: StateWatch | None = None
        self._prover: Prover | None = None
        self._start_sha256: str | None = None
        self.evaluation: dict[str, NDArray[Any]] = {}
        self._folder = context.out / FOLDER

    @cached_property
    def _identity(self) -> str:
        """Return a digest of everything that decides the training's bits.

        A checkpoint of a machine with different kernels is not continued: the record would have the fingerprint of its
        last machine and the bits of another, and the judge would take their rounding for drift.
        """
        operations = [[each.name, each.sha256] for each in self.context.operations["learn"]]
        return digest_json([self.context.spec.digest, torch.__version__, transformers.__version__, operations])

    def _engine(self) -> Engine:
        context, learn = self.context, self.learn
        settings = apply_settings(learn.precision, strict=True, part="learn")
        device = context.ranks.device
        model = build_model(context.spec, attention=learn.attention, dropout=learn.dropout, device=device)
        load_weights(model, context.weights)
        self._masks = DropoutClock(context.spec.seed)  # which numbers the layers of one model
        if learn.dropout:
            self._check_dropout()
            use_portable_dropout(model, self._masks, compiled=learn.compile)
        compiler = {"compiled": True, "compiler": default_compiler()} if learn.compile else {}
        context.note("learn", settings | {"precision": learn.precision, "attention": attention_of(model)} | compiler)
        model.train()
        engine = Engine(
            context.spec, model, context.ranks, steps=learn.steps, precision=learn.precision, part="learn",
            masks=self._masks,
        )  # fmt: skip
        context.measure("learn", engine, learn.evaluation_rows, compiled=learn.compile)
        # A library may change settings as it computes: what was measured leaves nothing behind.
        apply_settings(learn.precision, strict=True, part="learn")
        if learn.compile:
            engine.is_compiled = True
            engine.model = torch.compile(engine.model)  # windows and evaluations run the plain model
        return engine

    def _check_dropout(self) -> None:
        family = self.context.spec.model.family
        if family not in PORTABLE_DROPOUT:
            text = f"is portable for {', '.join(PORTABLE_DROPOUT)} only, not for {family!r}"
            raise TrainingFailedError(
                text, code="setting", part="learn", where="learn", key="dropout", hint="set it to 0"
            )

    def _read_losses(self, engine: Engine) -> None:
        """Copy pending losses from the device; stop at a non-finite loss."""
        if self._prover is not None:
            self._prover.finish()
        if self._watch:
            self._watch.compare()
        done = [outcome for _, outcome in self._pending]
        read = iter(read_losses(loss for each in done for loss, _ in each.losses))
        losses_here = [float(sum(next(read) * share for _, share in each.losses)) for each in done]
        norms = read_losses(each.gradient_norm for each in done if each.gradient_norm is not None)
        self._progress.gradient_norms += map(finite, norms[: MAX_LOGGED - len(self._progress.gradient_norms)])
        everyone = self.context.ranks.gather(losses_here)
        totals = [float(sum(mine)) for mine in zip(*everyone, strict=True)]
        steps = [step for step, _ in self._pending]
        self._pending = []
        for step, total in zip(steps, totals, strict=True):
            self._progress.losses.append(finite(total))
            engine.check(step, total)

    def _evaluate(self, engine: Engine, step: int) -> None:
        if not self.context.ranks.is_first:
            return
        rows, recount = self.context.evaluation_rows(self.learn.evaluation_rows), Recount(engine.task)
        with recount.watching(engine.bare):
            evidence, self.evaluation = self._evaluated(engine, step, rows)
        self._progress.evaluations.append(evidence.to_json())
        self._progress.evaluated.append(_fed(self.evaluation))
        self._progress.recounted.append(recount.metrics())

    def _evaluated(self, engine: Engine, step: int, rows: Dataset[Any]) -> Any:
        """Evaluate the model on `rows` after `step` steps."""
        return self._evaluator()(
            engine.bare, rows, task=engine.task, step=step, batch_size=self.context.spec.batch_size,
            precision=self.learn.precision, device=self.context.ranks.device,
        )  # fmt: skip

    def _evaluated_few(self, engine: Engine, step: int) -> Any:
        """Evaluate a few rows, as part of a repeated step."""
        rows = self.context.evaluation_rows(min(self.learn.evaluation_rows, _ROWS_TO_CHOOSE_FROM))
        masks = rows.__getitems__(list(range(len(rows))))["attention_mask"]
        chosen = window_rows(masks, (self.context.spec.seed, step))
        return self._evaluated(engine, step, Subset(rows, chosen))

    def _evaluator(self) -> Callable[..., Any]:
        return evaluate

    def _after(self, engine: Engine, done: int) -> None:
        """Evaluate, save a checkpoint and stop as required after `done` steps."""
        learn = self.learn
        last, stopping = done == learn.steps, self.context.stopping()
        evaluated, saved = done % learn.evaluate_every == 0 or last, done % learn.checkpoint_every == 0 or stopping
        if evaluated or saved or done == self.until or len(self._pending) >= _READ_EVERY:
            self._read_losses(engine)
        if evaluated:
            self._hold(done, "evaluation")
            self._evaluate(engine, done)
        if saved:
            self._hold(done, "checkpoint")
        if saved and not last and self.context.ranks.is_first:
            self._progress.step, self._progress.state = done, _state_digests(engine)
            save_checkpoint(self._folder, engine, self._progress, self._identity)
        if not self._pending:
            self.context.emit("learn", done, learn.steps, stopping=stopping)

    def _hold(self, done: int, event: WatchedEvent) -> None:
        if self._watch:
            self._watch.released(done)
            self._watch.held(event)

    def run(self) -> None:
        """Train from scratch, or resume from a checkpoint."""
        context, learn = self.context, self.learn
        engine = self._engine()
        self._model = engine.bare
        self._start_sha256 = digest_tensors(dict(engine.bare.named_parameters()))
        seed_generators(context.spec.seed)
        loaded = load_checkpoint(self._folder, engine, self._identity)
        if loaded:
            self._progress = loaded
            self._progress.resumed_at.append(loaded.step)
            saved, found = loaded.state, _state_digests(engine)
            self._progress.resumed_wrongly += [name for name, digest in saved.items() if found[name] != digest]
        self._make_checks(engine)
        prover = self._prover = Prover(engine, context.proven("learn"), self._progress.proofs)
        start = self._progress.step
        if self._watch:
            self._watch.starts(start)
        context.emit("learn", start, learn.steps)
        for step, batch in enumerate(context.batches(first=start, count=self.until - start), start=start):
            self._starts(engine, step)
            if self._windows and step in self._places:
                self._windows.run(lambda: engine, step, batch)
            if self._watch:
                self._watch.released(step)
            outcome = prover.train(step, batch)
            if self._watch and not self._masks_are_due(step):
                self._watch.add(step, "masks", "step")
            if self._watch and outcome.gradient_norm is not None:
                self._watch.stepped(step, outcome.gradient_norm)
            self._log(outcome)
            outcome.batch = {}  # which nothing reads again
            self._pending.append((step, outcome))
            context.place = ("learn", step)
            self._after(engine, step + 1)
        if self._watch:
            self._watch.released(self.until)

    def _masks_are_due(self, step: int) -> bool:
        """Return whether the step drew exactly the dropout masks of its rows."""
        spec, drawn = self.context.spec, self._masks.drawn
        mine = self.context.ranks.slice(spec.batch_size)
        rows = range(mine.start, mine.stop, (mine.stop - mine.start) // spec.optimizer.accumulation_steps)
        return not drawn or drawn == {(spec.seed, step, row) for row in rows}

    def _make_checks(self, engine: Engine) -> None:
        """Create the windows, and the watch of the state between steps, unless this is an experiment."""
        context, start = self.context, Start(self.context.weights)
        if context.is_checked:
            setting = WindowSetting("learn", start, lambda _: contextlib.nullcontext(), self._evaluated_few)
            self._windows = WindowRunner(context, setting, self._progress.portable)
            self._watch = StateWatch(engine, context.ranks, self._progress.inconsistent)

    @cached_property
    def _places(self) -> frozenset[int]:
        """Return the steps to repeat in portable arithmetic."""
        context = self.context
        return frozenset(curve_places(context.spec, -(-context.plan.order.num_rows // context.spec.batch_size)))

    def _starts(self, engine: Engine, step: int) -> None:
        """Prepare a step; experiments override this hook."""

    def _log(self, outcome: StepOutcome) -> None:
        """Log the step's batch digests and learning rate, to explain later differences."""
        progress = self._progress
        if len(progress.batches) < MAX_LOGGED:
            arrays = {name: digest_array(values.numpy()) for name, values in sorted(outcome.batch.items())}
            progress.learning_rates.append(outcome.learning_rate)
            progress.batches.append(digest_json(arrays)[:SHORT_DIGITS])
            progress.rows.append(arrays["row_ids"][:SHORT_DIGITS])
            progress.labels.append(arrays["labels"][:SHORT_DIGITS])

    def finish(self) -> None:
        """Remove the checkpoints once the record is written."""
        drop_checkpoints(self._folder)

    def evidence(self) -> LearnEvidence | None:
        """Return the learning curve so far, with the weights' digest."""
        if self._model is None:
            return None
        return self.curve(digest_tensors(dict(self._model.named_parameters())))

    def curve(self, weights_sha256: str | None = None) -> LearnEvidence | None:
        """Return the losses and evaluations already copied to the host."""
        if self._model is None:
            return None
        progress = self._progress
        lists = {name: value for name, value in vars(progress).items() if name in LearnEvidence.model_fields}
        return LearnEvidence.model_validate({
            **lists, "steps": len(progress.losses), "weights_sha256": weights_sha256,
            "start_sha256": self._start_sha256, "dropout": _dropout_of(self._model),
            "resumed_wrongly": tuple(dict.fromkeys(progress.resumed_wrongly)),
            "portable": self._windows.evidence() if self._windows else None, **_chance(self.evaluation),
        })  # fmt: skip

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of the last evaluation."""
        return {name: self.evaluation[name] for name in RESULTS if self.evaluation}

    def answers(self) -> dict[str, NDArray[np.generic]]:
        """Return which rows the last evaluation predicted correctly."""
        return {name: self.evaluation[name] for name in ("row_ids", "right")} if "right" in self.evaluation else {}


def _fed(arrays: dict[str, NDArray[Any]]) -> tuple[str, str]:
    """Return the digests of an evaluation's inputs and labels."""
    labels, inputs = (digest_array(arrays[name])[:SHORT_DIGITS] for name in ("labels", "inputs"))
    return labels, inputs


def _chance(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the share of the most frequent label, and of how many labels the predictions are."""
    if not arrays:
        return {}
    counts = np.unique(arrays["labels"][arrays["labels"] != IGNORED], return_counts=True)[1]
    chance = float(counts.max() / counts.sum()) if len(counts) else None
    is_by_row = arrays["labels"].ndim == 1
    return {"chance": chance, "num_predicted": len(np.unique(arrays["predictions"])) if is_by_row else None}


def _state_digests(engine: Engine) -> dict[str, str]:
    """Return a digest of each state that resuming must restore."""
    return {
        "weights": digest_tensors(dict(engine.bare.named_parameters())),
        "moments": digest_tensors(read_moments(engine)),
        "schedule": digest_json(
            [engine.schedule.last_epoch, *(group["lr"] for group in engine.optimizer.param_groups)]
        ),
        "generators": digest_json(digest_states(read_states())),
    }


def _dropout_of(model: torch.nn.Module) -> tuple[float, ...]:
    """Return the distinct rates of all dropout layers."""
    layers = (module for module in model.modules() if isinstance(module, (torch.nn.Dropout, PortableDropout)))
    return tuple(sorted({float(layer.p) for layer in layers if layer.p}))
