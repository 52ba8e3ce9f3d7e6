"""Windows of the probe: repeat its first steps in fp64."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import torch

from plumbline.schema.evidence import PortableEvidence, PortableWindow
from plumbline.schema.portable_parts import probe_places, window_parts
from plumbline.schema.sketch import small_sketch
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.train.batches import Batch, of_probe
from plumbline.train.engine import Engine, Observer
from plumbline.train.models.model import build_model, fit_activations, load_weights
from plumbline.train.numerics import seed_generators
from plumbline.train.portable.draw import answer
from plumbline.train.portable.fp64 import fp64_arithmetic
from plumbline.train.portable.products import check_products, training_products
from plumbline.train.portable.steps import digested, parted_processes, portable_window
from plumbline.train.ranks import Ranks
from plumbline.train.watch.recorder import Recorder
from plumbline.train.watch.taps import ModuleTaps


class _Pace:
    """Time limit for additional windows."""

    def __init__(self, limit: float | None) -> None:
        self._limit, self._seconds, self._began = limit, list[float](), 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._seconds.append(time.monotonic() - self._began)

    @property
    def is_over(self) -> bool:
        """Return whether the time limit allows no further step."""
        seconds = self._seconds
        return self._limit is not None and sum(seconds) + seconds[-1] + seconds[0] > self._limit


class _Run(Protocol):
    """Interface of a training run, as its windows need it."""

    spec: RunSpec
    ranks: Ranks
    weights: dict[str, torch.Tensor]
    draw: str

    def batches(self, *, first: int, count: int, cycle: int | None = None) -> Iterator[Batch]: ...

    def release(self) -> None: ...


class ProbeWindows:
    """Windows of the probe's first steps, and of two later steps.

    Every process trains on the whole global batch, so that the number of processes does not change the numbers.
    """

    def __init__(self, context: _Run, probe: ProbeSpec) -> None:
        self._context, self._probe = context, probe
        self._steps, self._late = probe_places(probe, context.spec.seed)

    def _train(self, steps: int, taps: frozenset[int], late: tuple[int, ...] = ()) -> PortableEvidence:
        """Train `steps` steps, then the steps `late`."""
        context, probe = self._context, self._probe
        # Device memory is scarce; in main memory a collection costs more than it frees.
        if context.ranks.device.type == "cuda":
            context.release()
        model = build_model(context.spec, attention=probe.attention, dropout=0.0, device=context.ranks.device)
        load_weights(model, context.weights)
        model.train()
        alone = Ranks(device=context.ranks.device)
        spec = of_probe(context.spec)
        fit_activations(model, spec, alone, torch.float64)
        engine = Engine(spec, model, alone, steps=probe.steps, precision="fp64", part="probe")
        recorder = engine.observer = Recorder(engine, ModuleTaps(engine, taps.union(late)))
        seed_generators(context.spec.seed)
        windows, drawn = list[PortableWindow](), None
        pace = _Pace(probe.portable_seconds)
        try:
            for step in (*range(steps), *late):
                batch = next(iter(context.batches(first=step, count=1, cycle=probe.steps)))
                while engine.schedule.last_epoch < step:
                    engine.advance()
                with pace, fp64_arithmetic():
                    engine.step(step, batch)
                    kept = {
                        stage: {name: digested(each) for name, each in found.items()}
                        for stage, found in recorder.kept.items()
                    }
                    windows.append(portable_window(step, kept, recorder.loss_value))
                    # The one step that every run has, however short its time is.
                    if step == 0 and context.draw:
                        drawn = small_sketch(answer(engine, batch, context.draw))
                if pace.is_over:
                    break
        finally:
            # Break the cycle with the recorder, which would keep the model alive.
            engine.observer = Observer()
        return PortableEvidence(windows=tuple(windows), drawn=None if drawn is None else tuple(drawn.tolist()))

    def run(self, *, repeat: bool = True) -> PortableEvidence:
        """Train, then repeat the first step, to detect a faulty device."""
        check_products(self._context.ranks.device, training_products(of_probe(self._context.spec)))
        taps = frozenset(step for step in self._probe.tap_steps if step < self._steps)
        found = self._train(self._steps, taps, self._late)
        again = self._train(1, taps & {0}) if repeat else found
        differences = window_parts(found.windows[0], again.windows[0])
        return found.replace(repeated=next(differences, None) is None)

    def compared(self, found: PortableEvidence) -> PortableEvidence:
        """Return the windows with the processes whose windows differ from the majority's."""
        ranks = self._context.ranks
        repeats = not ranks.anyone(not found.repeated)
        return found.replace(repeated=repeats, ranks=tuple(parted_processes(ranks, found)))
