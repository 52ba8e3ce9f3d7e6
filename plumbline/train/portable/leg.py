"""Portable leg: the probe's first steps again, in portable arithmetic, fully digested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.digest import digest_array, digest_json
from plumbline.schema.evidence import PortableEvidence, PortableStep, TapStage
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.sketch import small_sketch
from plumbline.train.batches import Batch
from plumbline.train.digests import finite, host_array
from plumbline.train.engine import Engine, Observer, Outcome
from plumbline.train.model import build_model, load_weights
from plumbline.train.numerics import seed_generators
from plumbline.train.portable.arithmetic import portable_arithmetic
from plumbline.train.portable.operations import UnportableOperationError
from plumbline.train.portable.products import check_products
from plumbline.train.portable.scalars import make_portable
from plumbline.train.ranks import Ranks
from plumbline.train.taps import ModuleTaps, TapBook, named_gradients

__all__ = ["PortableLeg", "short_digest"]

_DIGITS = 16


def short_digest(array: NDArray[Any]) -> str | None:
    """Return the start of an array's digest; `None` if not finite. The sign of zero is ignored."""
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            return None
        array = array + 0.0
    return digest_array(array)[:_DIGITS]


def _digests(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, short_digest(host_array(value))) for name, value in tensors.items())


class _Observer(Observer):
    """Observer that digests and sketches every step, and taps modules at some steps."""

    def __init__(self, engine: Engine, book: TapBook, taps: frozenset[int]) -> None:
        self.engine, self._book, self._tap_steps = engine, book, taps
        self._sketches: list[tuple[str, tuple[float, ...]]] = []
        self.outputs: list[tuple[str, str | None]] = []
        self.steps: list[PortableStep] = []
        self.losses: list[float] = []
        self._taps: ModuleTaps | None = None
        self._step = 0
        self._gradients: tuple[tuple[str, str | None], ...] = ()

    def keep(self, stage: str, step: int, name: str, array: NDArray[Any]) -> None:
        """Digest a module's output from the tap book, and sketch the tensor."""
        del step
        if np.isfinite(array).all():
            self._sketches.append((f"{stage} {name}", tuple(map(float, small_sketch(array)))))
        if stage == "forward":
            self.outputs.append((name, short_digest(array)))

    def _keep_parameters(self, stage: TapStage, tensors: Mapping[str, torch.Tensor]) -> None:
        """Sketch one tensor per parameter, at tap steps through the book."""
        if self._step in self._tap_steps:
            self._book.add_parameters(self._step, stage, self.engine.bare, tensors)
            return
        for name, value in tensors.items():
            self.keep(stage, self._step, name, host_array(value))

    def starts(self, step: int) -> None:
        self._step = step
        self.outputs.clear()
        self._sketches = []
        if step in self._tap_steps:
            self._taps = ModuleTaps(self.engine.bare, self.engine.ranks)

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        if self._taps:
            self._taps.feeds(len(local["labels"]))

    def backward_done(self) -> None:
        gradients = named_gradients(self.engine.bare)
        self._gradients = _digests(gradients)
        if self._taps:
            self._taps.summarise(self._book, self._step)
            self._taps.close()
            self._taps = None
        self._keep_parameters("gradient", gradients)

    def done(self, outcome: Outcome) -> None:
        parameters = dict(self.engine.bare.named_parameters())
        self._keep_parameters("weight", parameters)
        loss = outcome.loss(self.engine.ranks)
        self.losses.append(loss)
        self.steps.append(
            PortableStep(
                step=self._step,
                loss=None if finite(loss) is None else loss.hex(),
                outputs=tuple(self.outputs),
                gradients=self._gradients,
                weights=_digests(parameters),
                sketches=tuple(self._sketches),
            )
        )


class _Run(Protocol):
    """Interface of a run, as the leg needs it."""

    spec: RunSpec
    ranks: Ranks
    weights: dict[str, torch.Tensor]

    def batches(self, *, first: int, count: int, cycle: int | None = None) -> Iterator[Batch]: ...

    def release(self) -> None: ...


class PortableLeg:
    """The probe's first steps in portable arithmetic.

    Products have full precision at tap steps, and a single slice elsewhere. Every process trains on the whole global
    batch, so that the number of processes does not change the bits.
    """

    def __init__(self, context: _Run, probe: ProbeSpec) -> None:
        self._context, self._probe = context, probe
        self._steps = min(probe.portable_steps, probe.steps)
        self.book = TapBook(digests=False)
        self.losses: list[float] = []
        self.evidence: PortableEvidence | None = None

    @property
    def exact_steps(self) -> int:
        """Return the number of first steps precise enough to replace fp64."""
        return 0 if self.evidence is None or self.evidence.unportable else self._num_exact

    @property
    def comparable_steps(self) -> int:
        """Return the number of first steps that show whether a tensor is pure rounding.

        One slice suffices: the leg's own rounding is then as far from fp32's as fp32's is from fp64.
        """
        return 0 if self.evidence is None or self.evidence.unportable else self._num_tapped

    @property
    def _num_exact(self) -> int:
        return 0 if self._probe.portable_slices == 1 else self._num_tapped

    @property
    def _num_tapped(self) -> int:
        return next((step for step in range(self._steps) if step not in self._probe.tap_steps), self._steps)

    def _train(self, steps: int, book: TapBook, taps: frozenset[int]) -> tuple[_Observer, str]:
        """Train `steps` steps; return the digests and any unportable operation."""
        context, probe = self._context, self._probe
        # Device memory is scarce; in main memory a collection costs more than it frees.
        if context.ranks.device.type == "cuda":
            context.release()
        model = build_model(context.spec, attention=probe.attention, dropout=0.0, device=context.ranks.device)
        load_weights(model, context.weights)
        model.train()
        engine = Engine(
            context.spec, model, Ranks(device=context.ranks.device), steps=probe.steps, precision="fp64", part="probe"
        )
        make_portable(engine.optimizer)
        observer = engine.observer = _Observer(engine, book, taps)
        book.keep = observer.keep
        seed_generators(context.spec.seed)
        unportable = ""
        try:
            for step, batch in enumerate(context.batches(first=0, count=steps, cycle=probe.steps)):
                with portable_arithmetic(probe.portable_slices if step in taps else 1):
                    engine.step(step, batch)
        except UnportableOperationError as error:
            unportable = error.operation
        finally:
            # Break the cycle of both, which would keep the model alive.
            del observer.engine
            book.keep = None
        return observer, unportable

    def run(self, *, repeat: bool = True) -> None:
        """Train, then repeat the first step: different bits mean a wrong device."""
        check_products(self._context.ranks.device)
        taps = frozenset(step for step in self._probe.tap_steps if step < self._steps)
        found, unportable = self._train(self._steps, self.book, taps)
        again = self._train(1, TapBook(digests=False), taps & {0})[0] if repeat else found
        self.losses = found.losses
        self.evidence = PortableEvidence(
            slices=self._probe.portable_slices, steps=tuple(found.steps),
            repeated=found.steps[:1] == again.steps[:1], unportable=unportable,
        )  # fmt: skip

    def compare_processes(self) -> None:
        """Compare the bits of all processes, after each has trained: different bits mean a wrong device, too."""
        assert self.evidence is not None  # noqa: S101 - the leg has run
        ranks = self._context.ranks
        digests = [step.to_json() for step in self.evidence.steps]
        everyone = ranks.gather(digest_json([digests, self.evidence.unportable]))
        agrees = self.evidence.repeated and len(set(everyone)) == 1
        self.evidence = self.evidence.replace(repeated=not ranks.anyone(not agrees))
