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
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.portable_parts import curve_places
from plumbline.schema.spec import LearnSpec
from plumbline.schema.step_log import WatchedEvent
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
from plumbline.train.digests import digest_tensors
from plumbline.train.engine import Engine
from plumbline.train.engine_state import Start
from plumbline.train.evaluation import RESULTS, Recount, evaluate
from plumbline.train.failure import TrainingFailedError
from plumbline.train.models.dropout import DropoutClock, use_portable_dropout
from plumbline.train.models.families import PORTABLE_DROPOUT
from plumbline.train.models.model import build_model, load_weights
from plumbline.train.numerics import apply_settings, digest_states, read_states, seed_generators
from plumbline.train.proof.steps import Prover
from plumbline.train.tasks import IGNORED
from plumbline.train.watch.state_watch import StateWatch
from plumbline.train.watch.step_log import StepLogger
from plumbline.train.windows import WindowRunner, WindowSetting, window_rows

_READ_EVERY = 50
_ROWS_TO_CHOOSE_FROM = 64


class LearnRun:
    """One training run to an evaluated accuracy."""

    def __init__(self, context: Context, learn: LearnSpec) -> None:
        self.context, self.learn, self.until = context, learn, learn.steps
        self._progress = Progress()
        self._num_pending = 0
        self._masks = DropoutClock(context.spec.seed)
        self._windows: WindowRunner | None = None
        self._watch: StateWatch | None = None
        self._prover: Prover | None = None
        self._log: StepLogger | None = None
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

    def _read_log(self, engine: Engine) -> None:
        """Copy the pending steps' log from the device; stop at a non-finite loss."""
        if self._prover is not None:
            self._prover.finish()
        if self._log is not None:
            first = len(self._log.columns["losses"])
            for step, loss in enumerate(self._log.read(), start=first):
                engine.check(step, loss)
        self._num_pending = 0

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
        if done == self.until and self._log is not None:
            self._log.weigh(done)
        if evaluated or saved or done == self.until or self._num_pending >= _READ_EVERY:
            self._read_log(engine)
        if evaluated:
            self._hold(done, "evaluation")
            self._evaluate(engine, done)
        if saved:
            self._hold(done, "checkpoint")
        if saved and not last and self.context.ranks.is_first:
            self._progress.step, self._progress.state = done, _state_digests(engine)
            save_checkpoint(self._folder, engine, self._progress, self._identity)
        if not self._num_pending:
            self.context.emit("learn", done, learn.steps, stopping=stopping)

    def _hold(self, done: int, event: WatchedEvent) -> None:
        if self._watch:
            self._watch.released(done)
            self._watch.held(event)

    def run(self) -> None:
        """Train from scratch, or resume from a checkpoint."""
        context, learn = self.context, self.learn
        engine = self._engine()
        seed_generators(context.spec.seed)
        loaded = load_checkpoint(self._folder, engine, self._identity)
        if loaded:
            self._progress = loaded
            self._progress.resumed_at.append(loaded.step)
            saved, found = loaded.state, _state_digests(engine)
            self._progress.resumed_wrongly += [name for name, digest in saved.items() if found[name] != digest]
        log = self._log = StepLogger(engine, self._progress.log, most=self.learn.steps)
        self._make_checks(engine, log)
        prover = self._prover = Prover(engine, context.proven("learn"), self._progress.proofs)
        start = self._progress.step
        log.compare(start)
        context.emit("learn", start, learn.steps)
        for step, batch in enumerate(context.batches(first=start, count=self.until - start), start=start):
            self._starts(engine, step)
            if self._windows and step in self._places:
                self._windows.run(lambda: engine, step, batch)
            if self._watch:
                self._watch.released(step)
            with log.watching():
                prover.train(step, batch)
            if self._watch and not self._masks_are_due(step):
                self._watch.add(step, "masks", "step")
            log.compare(step + 1)
            self._num_pending += 1
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

    def _make_checks(self, engine: Engine, log: StepLogger) -> None:
        """Create the windows, and the watch of the state between steps, unless this is an experiment."""
        context, start = self.context, Start(self.context.weights)
        if context.is_checked:
            setting = WindowSetting("learn", start, lambda _: contextlib.nullcontext(), self._evaluated_few)
            self._windows = WindowRunner(context, setting, self._progress.portable)
            self._watch = StateWatch(engine, context.ranks, log.columns["inconsistent"])

    @cached_property
    def _places(self) -> frozenset[int]:
        """Return the steps to repeat."""
        context = self.context
        return frozenset(curve_places(context.spec, -(-context.plan.order.num_rows // context.spec.batch_size)))

    def _starts(self, engine: Engine, step: int) -> None:
        """Prepare a step; experiments override this hook."""

    def finish(self) -> None:
        """Remove the checkpoints once the record is written."""
        drop_checkpoints(self._folder)

    def evidence(self) -> LearnEvidence | None:
        """Return the learning curve as far as it was copied to the host."""
        if self._log is None:
            return None
        log, progress = self._log.log(), self._progress
        lists = {name: value for name, value in vars(progress).items() if name in LearnEvidence.model_fields}
        return LearnEvidence.model_validate({
            **lists, **log, "steps": len(log["losses"]),
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
