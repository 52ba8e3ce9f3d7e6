"""Speed part: throughput of steady steps, with explaining measurements."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.environments.launch import MICROBENCHMARKS
from plumbline.schema.errors import StoppedError
from plumbline.schema.record import read_record
from plumbline.schema.spec import DataSpec, ModelSpec, RunSpec
from plumbline.schema.step_log import StepLog
from plumbline.train import batches, speed
from plumbline.train.context import Context
from plumbline.train.job import TrainJob, open_run
from plumbline.train.learn import LearnRun
from plumbline.train.machine.clock import StepClock
from plumbline.train.machine.microbench import flops_of, step_flops
from plumbline.train.machine.sampler import Sampler
from plumbline.train.own_checks import OwnChecks
from plumbline.train.rows import Rows
from plumbline.train.speed import WINDOW, found_warm
from plumbline.train.speed_engine import make_engine
from plumbline.train.windows import WindowRunner
from tests.train.conftest import Trained, Workshop, before_steps
from tests.train.forked_ranks import in_new_process

SPEED = {"steps": 12, "precision": "fp32", "checks": False}
CHECKED = {**SPEED, "checks": True}
PHASES = {"data_wait", "host_to_device", "forward", "backward", "optimizer", "communication"}


@pytest.fixture(scope="module")
def measured(workshop: Workshop) -> Trained:
    return workshop.train(workshop.spec(probe=None, speed=SPEED))


def test_one_number_and_what_explains_it(measured: Trained) -> None:
    speed = measured.record.evidence.speed
    assert speed.steps == 12
    assert speed.warmup_steps >= 2 * WINDOW
    assert speed.samples_per_second == pytest.approx(8 * 12 / speed.wall_seconds)
    assert speed.wall_seconds >= 12 * speed.step_seconds_quartiles[0]
    assert speed.tokens_per_second == pytest.approx(16 * speed.samples_per_second)
    assert set(speed.breakdown) == PHASES
    assert all(seconds > 0 for name, seconds in speed.breakdown.items() if name != "communication")
    assert len(speed.gradient_norms) == len(speed.losses) == speed.warmup_steps + speed.steps
    assert [step for step, _ in speed.weights] == [*range(2 * WINDOW + 1), len(speed.losses)]
    low, high = speed.step_seconds_quartiles
    assert speed.step_seconds <= speed.step_seconds_p95 <= speed.wall_seconds
    assert low <= speed.step_seconds <= high
    # No row of the workshop is padded at this length.
    assert speed.real_mfu == pytest.approx(speed.mfu)
    assert speed.real_tokens_per_second == pytest.approx(speed.tokens_per_second)
    assert speed.peak_memory_bytes > 1 << 20
    assert speed.peak_host_memory_bytes == speed.peak_memory_bytes  # on a CPU there is one memory


def test_the_machine_is_measured_before_and_after(measured: Trained) -> None:
    result = measured.record.evidence.speed.microbenchmarks
    names = {name for name in result if not name.endswith("_after")}
    assert {"gemm_flops", "host_gemm_flops", "host_copy_bytes_per_second", "device_copy_bytes_per_second"} <= names
    assert {f"{name}_after" for name in names} <= set(result)
    assert all(value > 0 for value in result.values())


def test_the_machine_is_not_measured_where_pairs_cancel_it(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MICROBENCHMARKS, "off")
    measured = workshop.train(workshop.spec(probe=None, speed=SPEED)).record.evidence.speed
    assert measured.microbenchmarks == {}
    assert measured.mfu is None
    assert measured.samples_per_second > 0


def test_the_sampler_reads_what_the_judge_asks_for(measured: Trained) -> None:
    samples = measured.record.evidence.speed.samples
    assert {"load", "cpu_steal", "foreign_cpu", "cgroup_throttled", "memory_pressure", "disk_busy"} <= set(samples)
    assert len({len(values) for values in samples.values()}) == 1
    assert len(samples["load"]) >= 1


@pytest.mark.first(1)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_activity_is_sampled_in_the_measured_steps_alone(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """A compiler idles the GPU for a minute: with its clocks among the readings, a throttled GPU looks healthy."""
    enter, done, begun, graphs = Sampler.__enter__, list[int](), list[int](), list[int]()

    def noted(self: Sampler) -> Sampler:
        begun.append(len(done))
        return enter(self)

    def keep(graph: Any, _inputs: Any) -> Any:
        graphs.append(len(done))
        return graph.forward

    before_steps(monkeypatch, lambda _, step: done.append(step))
    monkeypatch.setattr(Sampler, "__enter__", noted)
    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend(keep)
    try:
        trained = workshop.train(workshop.spec(probe=None, speed={**CHECKED, "compile": compiled}))
    finally:
        torch.compiler.set_default_backend(before)
        torch.compiler.reset()
    assert begun == [1 + trained.record.evidence.speed.warmup_steps]  # the first step is a window's
    assert bool(graphs) is compiled
    assert not [at for at in graphs if begun[0] < at <= begun[0] + SPEED["steps"]]


@pytest.mark.long
def test_the_peak_of_memory_is_that_of_the_measured_steps(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of what comes after them: a GPU's counter rises with every part, and is set back before the steps."""
    peak = [1000]
    plain, learn = speed.microbenchmarks, LearnRun.run

    def more(*given: object) -> dict[str, float]:
        peak[0] += 10
        return plain(*given)

    def learns(self: LearnRun) -> None:
        peak[0] += 1
        learn(self)

    monkeypatch.setattr(speed, "microbenchmarks", more)
    monkeypatch.setattr(LearnRun, "run", learns)
    monkeypatch.setattr(speed, "_peak_memory", lambda *_: peak[0])
    steps = {"steps": 2, "evaluate_every": 2, "checkpoint_every": 100, "evaluation_rows": 8}
    record = workshop.train(workshop.spec(probe=None, speed=SPEED, learn=steps)).record
    assert peak == [1021]
    assert record.evidence.speed.peak_memory_bytes == 1010


@pytest.mark.long
def test_the_machine_is_measured_beside_the_measured_steps(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks behind them train in fp64: a machine that they heat is not the one that was timed."""
    order = []

    def noted(name: str, plain: Any) -> Any:
        return lambda *given, **named: (order.append(name), plain(*given, **named))[1]

    monkeypatch.setattr(speed, "microbenchmarks", noted("machine", speed.microbenchmarks))
    monkeypatch.setattr(WindowRunner, "run", noted("window", WindowRunner.run))
    monkeypatch.setattr(OwnChecks, "run", noted("checks", OwnChecks.run))
    workshop.train(workshop.spec(probe=None, speed=CHECKED))
    assert order == ["machine", "window", "machine", "window", "window", "checks"]


def test_rows_are_the_same_however_long_it_warms_up(
    workshop: Workshop, measured: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "LONGEST_WARMUP", 3 * WINDOW)
    monkeypatch.setattr(speed, "found_warm", lambda _: False)
    again = workshop.train(workshop.spec(probe=None, speed=SPEED))
    assert (measured.record.evidence.speed.warmup_steps, again.record.evidence.speed.warmup_steps) == (16, 24)
    assert again.record.evidence.data == measured.record.evidence.data
    assert all(marks == marks[:12] * 3 for marks in again.record.evidence.speed.batches.values())


def test_the_clock_starts_before_the_loader_is_asked(
    workshop: Workshop, measured: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = batches._collate

    def slow(batch):
        time.sleep(0.02)
        return plain(batch)

    monkeypatch.setattr(batches, "_collate", slow)
    before_steps(monkeypatch, lambda *_: time.sleep(0.02))
    speed = workshop.train(workshop.spec(probe=None, speed=SPEED)).record.evidence.speed
    assert speed.breakdown["data_wait"] >= 0.02
    assert speed.breakdown["optimizer"] >= 0.02  # what comes before a step is not a copy to the device
    assert speed.step_seconds > measured.record.evidence.speed.breakdown["data_wait"] + 0.02


def test_a_stall_between_steps_counts(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The median step does not see two stalls in twelve steps; a user waits for them all the same."""
    plain, calls = StepClock.stop, [0]

    def stalled(self: StepClock) -> None:
        plain(self)
        calls[0] += 1

    class Late:
        def __init__(self, run: speed.SpeedRun, found: object) -> None:
            self._run, self._found = run, found

        def __iter__(self):
            for step, batch in self._found:
                if self._run._warmup and step - self._run._warmup in (3, 7):
                    time.sleep(0.5)
                yield step, batch

    steps = speed.SpeedRun._steps
    monkeypatch.setattr(StepClock, "stop", stalled)
    monkeypatch.setattr(speed.SpeedRun, "_steps", lambda self: Late(self, steps(self)))
    found = workshop.train(workshop.spec(probe=None, speed=SPEED)).record.evidence.speed
    assert calls[0] >= 12
    assert found.wall_seconds > 1.0
    assert found.samples_per_second == pytest.approx(8 * 12 / found.wall_seconds)


def test_a_stop_among_the_measured_steps_leaves_a_record_without_a_throughput(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = Context.emit

    def stopped(self: Context, part: str, step: int, steps: int) -> None:
        emit(self, part, step, steps, stopping=part == "speed" and step > 0)

    monkeypatch.setattr(Context, "emit", stopped)
    out = workshop.out()
    with pytest.raises(StoppedError):
        workshop.train(workshop.spec(probe=None, speed={"steps": 40, "precision": "fp32"}), out)
    record = read_record(out)
    assert record.exit.code == "stopped"
    assert (record.evidence.speed.steps, record.evidence.speed.samples_per_second) == (0, None)


@pytest.mark.long
def test_the_parts_own_settings_are_in_force(workshop: Workshop) -> None:
    record = workshop.train(workshop.spec(speed={"steps": 10, "precision": "bf16"})).record
    numerics = record.fingerprint.numerics
    assert numerics["probe.deterministic_algorithms"] is True
    assert numerics["speed.deterministic_algorithms"] is False
    assert numerics["speed.fused_optimizer"] is True
    assert numerics["speed.dropout"] == 0.1


def test_rows_are_tokenized_before_the_first_step(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is tokenized among the measured steps is a wait that every night has alike."""
    seen: list[str] = []
    load, start = Rows._load, StepClock.start
    monkeypatch.setattr(Rows, "_load", lambda *given: (seen.append("load"), load(*given))[1])
    monkeypatch.setattr(StepClock, "start", lambda clock: (seen.append("step"), start(clock))[1])
    workshop.train(workshop.spec(probe=None, speed=SPEED))
    assert "load" in seen
    assert "load" not in seen[seen.index("step") :]


@pytest.fixture(scope="module")
def plain(workshop: Workshop) -> StepLog:
    return workshop.train(workshop.spec(probe=None, speed={**SPEED, "dropout": 0.0})).record.evidence.speed


def _train(workshop: Workshop, spec: RunSpec, out: Path) -> None:
    speed.LONGEST_WARMUP = 2 * speed.WINDOW
    workshop.train(spec, out)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "setting",
    [
        {"data_workers": 2},
        {"gradient_checkpointing": True, "padding": "longest"},
        {"sdpa_kernels": ["math"], "fused_optimizer": False, "foreach_optimizer": True},
        {"precision": "bf16", "tf32": True, "reduced_precision_reduction": False, "cudnn_benchmark": True},
    ],
)
def test_a_teams_settings(workshop: Workshop, measured: Trained, plain: StepLog, setting: dict[str, Any]) -> None:
    """Settings that change no arithmetic train on the same rows to the same bits; the others are close."""
    spec, out = workshop.spec(probe=None, speed={**SPEED, **setting, "dropout": 0.0}), workshop.out()
    in_new_process(_train, workshop, spec, out)
    record = read_record(out)
    log, numerics = record.evidence.speed, record.fingerprint.numerics
    if "data_workers" in setting:
        assert {name: marks[:28] for name, marks in log.batches.items()} == {
            name: marks[:28] for name, marks in plain.batches.items()
        }
        assert (log.losses[:16], log.weights[0]) == (plain.losses[:16], plain.weights[0])
    assert log.losses[:4] == pytest.approx(plain.losses[:4], rel=2e-2)
    noted = {key: ", ".join(value) if isinstance(value, list) else value for key, value in setting.items()}
    assert {key: numerics[f"speed.{key}"] for key in noted} == noted
    # A default is not noted: it must not look like a difference.
    assert "speed.data_workers" not in measured.record.fingerprint.numerics


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("is_padded", [True, False])
def test_the_forward_pass_reads_no_mask(workshop: Workshop, attention: str, is_padded: bool) -> None:
    """transformers asks on the device whether a batch is padded: a GPU's host would wait there once a step."""

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    spec = workshop.spec(probe=None, speed={**SPEED, "attention": attention})
    job = TrainJob(spec, workshop.out(), workshop.url, workshop.folder / "cache", "here", "r")
    found = []
    with open_run(job, threading.Event()) as context:
        batch = next(context.batches(first=0, count=1))
        if is_padded:
            batch["attention_mask"][1:, 11:] = 0
        for makes_masks in (True, False):
            engine = make_engine(context, spec, spec.speed, dropout=0.0, steps=1, ranks=context.ranks)
            engine.makes_masks &= makes_masks
            (piece, _), *_ = engine._micro_batches(batch)
            with Reads() as reads:
                loss = engine.model(**engine._inputs(piece)).loss
            found.append((reads.count, loss.detach()))
    (count, made), (library, usual) = found
    assert count == 0
    assert library > 0
    assert torch.equal(made, usual)


def test_a_batch_is_cut_at_its_longest_row(workshop: Workshop) -> None:
    """Padding changes no loss beyond rounding: the cut batch trains as the whole one does, in less than the time."""
    spec = workshop.spec(probe=None, speed={**SPEED, "padding": "longest", "dropout": 0.0})
    job = TrainJob(spec, workshop.out(), workshop.url, workshop.folder / "cache", "here", "r")
    found = []
    with open_run(job, threading.Event()) as context:
        batch = next(context.batches(first=0, count=1))
        batch["attention_mask"][:, 7:] = 0
        for is_cut in (True, False):
            engine = make_engine(context, spec, spec.speed, dropout=0.0, steps=1, ranks=context.ranks)
            engine.padding = "longest" if is_cut else "fixed"
            widths = {piece["input_ids"].shape[1] for piece, _ in engine._micro_batches(batch)}
            found.append((widths, engine.step(0, batch).loss(context.ranks)))
    (cut, short), (whole, usual) = found
    assert (cut, whole) == ({8}, {16})
    assert short == pytest.approx(usual, rel=1e-5)


@pytest.mark.parametrize(
    ("seconds", "warm"),
    [
        ([1.0] * (2 * WINDOW), True),
        ([1.0] * (2 * WINDOW - 1), False),
        ([2.0] * WINDOW + [1.0] * WINDOW, False),
        ([9.0] * WINDOW + [1.0] * WINDOW + [1.04] * WINDOW, True),
        ([1.0, 5.0] + [1.0] * (2 * WINDOW - 2), True),
    ],
)
def test_warm_is_found(seconds: list[float], warm: bool) -> None:
    assert found_warm(seconds) is warm


def test_flops_of_bert_base_are_those_everyone_knows() -> None:
    """6 FLOPs for each parameter of the encoder and token, and a little for attention: 85.1 M parameters."""
    model = ModelSpec(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        max_position_embeddings=512, vocab_size=30522, num_labels=2, weights_key="w", weights_sha256="0" * 64,
    )  # fmt: skip
    data = DataSpec(name="d", manifest_sha256="0" * 64, sequence_length=128)
    spec = RunSpec(
        workload="w", task="sequence-classification", model=model, data=data, seed=1, batch_size=32, probe={"steps": 1}
    )
    tokens = 32 * 128
    assert flops_of(spec, np.array([128] * 16 + [0] * 16)) == pytest.approx(step_flops(spec) / 2, rel=1e-4)
    assert step_flops(spec) == pytest.approx(6 * tokens * (84.9e6 + 12 * 2 * 128 * 768), rel=0.01)


def test_the_clock_adds_up() -> None:
    clock = StepClock(torch.device("cpu"))
    for _ in range(3):
        clock.start()
        clock.mark("data_wait")
        time.sleep(0.002)
        clock.mark("forward")
        clock.stop()
    assert len(clock) == 3
    assert clock.breakdown(0)["forward"] >= 0.002
    # Phases are means: one slow step counts in both.
    assert statistics.mean(clock.totals()) >= clock.breakdown(0)["forward"]


class Event:
    """Fake CUDA event, with 250 ms before each event; counts waits."""

    now = 0.0
    waits = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self) -> None:
        Event.now += 0.25
        self.at = Event.now

    def synchronize(self) -> None:
        assert self.at is not None
        Event.waits += 1

    def elapsed_time(self, later: Event) -> float:
        assert self.at is not None
        assert later.at is not None
        return 1000 * (later.at - self.at)


def test_events_are_read_late_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "waits", 0)
    clock = StepClock(torch.device("cuda", 0))
    for _ in range(70):
        clock.start()
        for phase in ("data_wait", "host_to_device", "forward", "backward", "forward", "backward", "optimizer"):
            clock.mark(phase)
        clock.stop()
    assert (len(clock), Event.waits) == (70, 70 - 64)
    assert clock.totals() == pytest.approx([1.75] * 70)
    assert (len(clock), Event.waits) == (70, 70)
    result = clock.breakdown(16)
    assert "communication" not in result
    assert {name: result[name] for name in ("data_wait", "forward", "backward", "optimizer")} == pytest.approx(
        {"data_wait": 0.25, "forward": 0.5, "backward": 0.5, "optimizer": 0.25}
    )


@pytest.mark.parametrize(("device", "hooks"), [("cpu", 1), ("cuda", 0)])
def test_communication_is_watched_where_the_hosts_clock_can_tell(device: str, hooks: int) -> None:
    """On a GPU a hook would slow the measured steps, and its figure would be of queueing and not of the exchange."""
    hooked = []
    StepClock(torch.device(device)).watch(SimpleNamespace(register_comm_hook=lambda *given: hooked.append(given)))
    assert len(hooked) == hooks


@pytest.mark.gpu
def test_on_a_gpu_events_tell_the_time(workshop: Workshop) -> None:
    speed = workshop.train(workshop.spec(probe=None, speed={"steps": 20, "precision": "bf16"})).record.evidence.speed
    assert {"gpu_clock_mhz", "gpu_power_watts", "gpu_throttle_reasons"} <= set(speed.samples)
    assert sum(speed.breakdown[name] for name in PHASES - {"communication"}) == pytest.approx(
        speed.step_seconds, rel=0.2
    )
    assert "transfer_bytes_per_second" in speed.microbenchmarks
