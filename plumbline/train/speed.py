"""Throughput run at the team's production settings, measured after warm-up."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.environments.launch import MICROBENCHMARKS
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.portable_parts import (
    LONGEST_WARMUP,
    MOST_BEHIND,
    UNTIMED,
    speed_places,
    steps_behind,
)
from plumbline.schema.production import ProductionEvidence
from plumbline.schema.proof import Proof
from plumbline.schema.spec import RunSpec, SpeedSpec
from plumbline.schema.variables import variable
from plumbline.train.batches import Batch
from plumbline.train.compat.transformers import attention_of
from plumbline.train.context import Context
from plumbline.train.engine import Engine
from plumbline.train.engine_state import Start, shown_rate
from plumbline.train.machine.clock import StepClock
from plumbline.train.machine.microbench import flops_of, microbenchmarks, step_flops
from plumbline.train.machine.sampler import Sampler
from plumbline.train.models.dropout import without_dropout
from plumbline.train.models.families import PORTABLE_DROPOUT
from plumbline.train.numerics import apply_settings, pack_states, read_states, restore_states, seed_generators
from plumbline.train.own_checks import OwnChecks
from plumbline.train.proof.steps import Prover
from plumbline.train.ranks import Ranks
from plumbline.train.speed_engine import compile_model, make_engine
from plumbline.train.watch.step_log import StepLogger
from plumbline.train.windows import WindowRunner, WindowSetting

WINDOW = 8
_STEADY = 0.05
_WEIGHED = UNTIMED
"""Number of steps after each of which the weights are summed: those of the shortest warm-up, which no timing includes.

Shards of weights are gathered for it, and so after the last of these steps alone.
"""


def found_warm(seconds: list[float]) -> bool:
    """Return whether the last two windows' median step times agree."""
    if len(seconds) < 2 * WINDOW:
        return False
    before, after = statistics.median(seconds[-2 * WINDOW : -WINDOW]), statistics.median(seconds[-WINDOW:])
    return abs(after - before) <= _STEADY * before


def _noted(spec: RunSpec) -> dict[str, Any]:
    """Return the throughput settings for the fingerprint."""
    keys = {"checks": spec.speed and spec.speed.checks, **spec.to_json()["speed"]}
    return {key: ", ".join(value) if isinstance(value, list) else value for key, value in keys.items()}


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def _tail(values: list[float]) -> float:
    """Return the 95th percentile, interpolated between the values."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


class SpeedRun:
    """One throughput measurement."""

    def __init__(self, context: Context, speed: SpeedSpec) -> None:
        self.context, self.speed = context, speed
        self._clock = StepClock(context.ranks.device)
        self._warmup = 0
        self._wall_seconds = 0.0
        self._microbenchmarks: dict[str, float] = {}
        self._peak_memory: int | None = None
        self._peak_host_memory: int | None = None
        self._sampler = Sampler(context.ranks.device)
        self._losses: list[torch.Tensor] = []
        self._log: dict[str, Any] = {}
        self._windows: WindowRunner | None = None
        self._place = 0
        """That of the latest window."""
        self._production: ProductionEvidence | None = None
        self._proofs: tuple[Proof, ...] = ()

    def _engine(self) -> Engine:
        context, speed = self.context, self.speed
        settings = apply_settings(speed.precision, strict=False, part="speed", speed=speed)
        engine = make_engine(
            context, context.spec, speed, dropout=speed.dropout, steps=speed.steps + LONGEST_WARMUP,
            ranks=context.ranks, clock=self._clock,
        )  # fmt: skip
        context.note(
            "speed",
            settings | _noted(context.spec) | {"attention": attention_of(engine.bare), "compiled": speed.compile},
        )
        context.measure("speed", engine, compiled=speed.compile)
        # A library may change settings as it computes: what was measured leaves nothing behind.
        apply_settings(speed.precision, strict=False, part="speed", speed=speed)
        self._clock.watch(engine.model)
        compile_model(engine, speed)
        return engine

    def _steps(self) -> Iterator[tuple[int, Batch]]:
        """Yield batches; start the clock before requesting each."""
        speed = self.speed
        batches = self.context.batches(
            first=0, count=speed.steps + LONGEST_WARMUP + MOST_BEHIND, cycle=speed.steps,
            num_workers=speed.data_workers, prefetch_factor=speed.prefetch_factor, pin_memory=speed.pin_memory,
        )  # fmt: skip
        step = 0
        while True:
            self._clock.start()
            batch = next(batches)
            self._clock.mark("data_wait")
            yield step, batch
            step += 1

    def run(self) -> None:
        """Warm up until stable, then measure throughput and microbenchmarks."""
        context, speed = self.context, self.speed
        if speed.distributed == "fsdp" and context.ranks.world == 1:
            hint = 'train on several GPUs (platforms.NAME.gpus), or set "ddp"'
            raise ConfigurationError("fsdp shards over several processes", where="speed", key="distributed", hint=hint)
        context.emit("speed", 0, speed.steps)
        context.prepare(speed.steps)
        # An earlier part left its own settings: without this call, matrix products would use that precision.
        apply_settings(speed.precision, strict=False, part="speed", speed=speed)
        self._microbenchmarks = self._measure_machine()
        first = next(iter(context.batches(first=0, count=1, cycle=speed.steps)))
        seed_generators(context.spec.seed)
        engine = self._engine()
        self._run_window(engine, first, place=0)
        log = StepLogger(engine)
        prover = Prover(engine, context.proven("speed"))
        measured: int | None = None
        began = 0.0
        with contextlib.ExitStack() as sampling:
            steps = self._steps()
            for step, batch in steps:
                with log.watching():
                    outcome = prover.train(step, batch)
                self._losses = [loss for loss, _ in outcome.losses]
                self._clock.stop()
                if step + 1 == _WEIGHED or (step < _WEIGHED and not engine.is_sharded):
                    log.weigh(step + 1)
                if measured is None and (step + 1 >= LONGEST_WARMUP or self._all_warm()):
                    measured, self._warmup = step + 1, step + 1
                    self._clock.resolve()  # waits for the device: earlier work must not count as measured steps
                    _reset_peak_memory(context.ranks.device)
                    sampling.enter_context(self._sampler)
                    began = time.perf_counter()
                elif measured is not None and step + 1 - measured >= speed.steps:
                    break
                if step % 10 == 0:
                    context.emit("speed", max(0, step - (measured or step)), speed.steps)
            self._clock.resolve()
            self._wall_seconds = time.perf_counter() - began
        # Of the measured steps only.
        self._peak_host_memory = _peak_host_memory()
        self._peak_memory = _peak_memory(context.ranks.device, self._peak_host_memory)
        for loss in self._losses:
            engine.check(self._warmup + speed.steps, float(loss))
        log.weigh(self._warmup + speed.steps)
        after = self._measure_machine()
        self._microbenchmarks |= {f"{name}_after": value for name, value in after.items()}
        self._behind(engine, prover, steps, first)
        log.read()
        self._log = log.log()

    def _behind(self, engine: Engine, prover: Prover, steps: Iterator[tuple[int, Batch]], first: Batch) -> None:
        """Train and check a few more steps after the measurement."""
        if not self.speed.checks:
            return
        ahead = steps_behind(self.context.draw)
        for step, batch in itertools.islice(steps, ahead):
            prover.add(self._warmup + self.speed.steps + ahead - 1)
            prover.train(step, batch)
        prover.finish()
        at = self._run_window(engine, first, place=1)
        if self.speed.dropout and self.context.spec.model.family in PORTABLE_DROPOUT:
            self._run_window(engine, first, place=2)
        checks = OwnChecks(self.context, self.speed, self._start(), prover.proofs)
        self._production = checks.run(engine, lambda: self._opened(engine, 1), at, first)
        self._proofs = tuple(map(Proof.model_validate, prover.proofs))

    def _start(self) -> Start:
        return Start(self.context.weights, shown_rate(self.context.spec.optimizer))

    def _opened(self, engine: Engine, place: int) -> Engine:
        """Return the engine, or a plain copy for portable checks.

        DDP's static graph counts the gradients of its first backward pass, which must not be a portable check's.
        """
        speed, ranks = self.speed, Ranks(device=self.context.ranks.device)
        is_counting = not place and speed.ddp_static_graph and self.context.ranks.world > 1
        if not (engine.is_sharded or is_counting or speed.attention == "flash_attention_2"):
            return engine
        generators = pack_states(read_states())
        keys = {"attention": "sdpa"} if speed.attention == "flash_attention_2" else {}
        plain = speed.replace(distributed="ddp", compile=False, compile_mode="default", **keys)
        opened = make_engine(self.context, self.context.spec, plain, dropout=0.0, steps=speed.steps, ranks=ranks)
        restore_states(generators)
        return opened

    def _run_window(self, engine: Engine, batch: Batch, *, place: int) -> int:
        """Repeat a step on a few rows."""
        places = speed_places(self.context.spec)
        if not places:
            return 0
        if self._windows is None:
            setting = WindowSetting("speed", self._start(), self._around_window)
            self._windows = WindowRunner(self.context, setting, {})
        self._place = place
        self._windows.run(lambda: self._opened(engine, place), places[place], batch)
        self.context.release()
        return places[place]

    def _around_window(self, engine: Engine) -> contextlib.AbstractContextManager[None]:
        """Return the context of a window: only the third one drops elements, as the training does."""
        return contextlib.nullcontext() if self._place == 2 else without_dropout(engine.bare)

    def _measure_machine(self) -> dict[str, float]:
        """Run the microbenchmarks, unless they are switched off."""
        if variable(MICROBENCHMARKS) == "off":
            return {}
        return microbenchmarks(self.context.ranks.device, self.speed.precision, self.context.out)

    def _all_warm(self) -> bool:
        """Return whether every process is warmed up."""
        if len(self._clock) % WINDOW:
            return False
        return all(self.context.ranks.gather(found_warm(self._clock.totals())))

    def _lengths(self, steps: int) -> NDArray[np.int64]:
        """Return the token count of each row in the measured steps."""
        size, plan = self.context.spec.batch_size, self.context.plan
        places = np.arange(self._warmup * size, (self._warmup + steps) * size) % (self.speed.steps * size)
        return self.context.rows.lengths(plan.order.rows(places))

    def evidence(self) -> SpeedEvidence:
        """Return the throughput, with the numbers that explain it."""
        context, seconds = self.context, self._clock.totals()[self._warmup :]
        # A run that was stopped among its measured steps has no wall time.
        if not seconds or not self._wall_seconds:
            return SpeedEvidence(
                steps=0, warmup_steps=self._warmup, samples_per_second=None, tokens_per_second=None, step_seconds=None
            )
        median, wall = statistics.median(seconds), self._wall_seconds
        rows = context.spec.batch_size * len(seconds)
        ceiling = self._microbenchmarks.get("gemm_flops")
        flops = step_flops(context.spec) / context.ranks.world
        lengths = self._lengths(len(seconds))
        real_flops = flops_of(context.spec, lengths) / context.ranks.world
        return SpeedEvidence(
            steps=len(seconds),
            warmup_steps=self._warmup,
            samples_per_second=rows / wall,
            tokens_per_second=rows * context.spec.data.sequence_length / wall,
            step_seconds=median,
            step_seconds_quartiles=_quartiles(seconds) if len(seconds) > 3 else None,
            step_seconds_p95=_tail(seconds) if len(seconds) > 3 else None,
            wall_seconds=wall,
            breakdown=self._clock.breakdown(self._warmup),
            mfu=flops * len(seconds) / wall / ceiling if ceiling else None,
            real_tokens_per_second=float(lengths.sum()) / wall,
            real_mfu=real_flops / wall / ceiling if ceiling else None,
            peak_memory_bytes=self._peak_memory,
            peak_host_memory_bytes=self._peak_host_memory,
            microbenchmarks=self._microbenchmarks,
            samples=self._sampler.samples(),
            proofs=self._proofs,
            portable=self._windows.evidence() if self._windows else None,
            production=self._production,
            **self._log,
        )


def _reset_peak_memory(device: torch.device) -> None:
    """Forget the peaks so far: a rerun trains `speed` alone, without proofs, and must measure the same."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # not on Linux
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_memory(device: torch.device, host: int | None) -> int | None:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else host


def _peak_host_memory() -> int | None:
    """Return this process's peak memory, excluding its parent's."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return None
