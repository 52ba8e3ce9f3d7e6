"""Training over several processes of one machine."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from plumbline.environments.launch import run_training
from plumbline.judge import compare
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.fingerprint import Expected
from plumbline.schema.record import Exit, read_record
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.schema.tolerance import is_over
from plumbline.train import engine, speed
from plumbline.train.portable.probe_windows import ProbeWindows
from tests.said import said
from tests.train.conftest import Trained, Workshop, before_steps, processes_below
from tests.train.forked_ranks import run_ranks

LEARN = {"steps": 3, "evaluate_every": 3, "checkpoint_every": 3, "evaluation_rows": 8}
PROBE = {"steps": 2, "evaluation_rows": 8, "portable_steps": 1}


def trained_by_two(
    workshop: Workshop, spec: RunSpec, folder: Path, around: Callable[..., AbstractContextManager[None]],
    *, fails: bool = False,
) -> Trained:  # fmt: skip
    """Train with two processes, which both end well unless the training `fails`."""
    _, _, _, *arguments = workshop.command(spec, folder / "out")
    codes = run_ranks(arguments, folder, around)
    assert fails or codes == [0, 0]
    return Trained(folder / "out", read_record(folder / "out"))


# Without annotations: DDP reads them, and these would be strings.
def _count(counted, bucket):
    counted.append(1)
    tensor = bucket.buffer().div_(torch.distributed.get_world_size())
    return torch.distributed.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


@contextlib.contextmanager
def counting(rank: int, folder: Path) -> Iterator[None]:
    """Count the reductions of gradients."""
    counted: list[int] = []

    class Counted(DistributedDataParallel):
        """Reduces as ever, and counts."""

        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            self.register_comm_hook(counted, _count)

    engine.DistributedDataParallel = Counted
    yield
    (folder / f"count-{rank}").write_text(str(len(counted)))


def reduces(workshop: Workshop, folder: Path, accumulation: int) -> int:
    """Return the number of gradient reductions of two processes in three steps."""
    folder.mkdir()
    spec = workshop.spec(probe=None, learn=LEARN, optimizer={"accumulation_steps": accumulation})
    trained_by_two(workshop, spec, folder, counting)
    counts = [int((folder / f"count-{rank}").read_text()) for rank in (0, 1)]
    assert counts[0] == counts[1]
    return counts[0]


@pytest.mark.long
def test_four_micro_batches_are_reduced_once(workshop: Workshop, tmp_path: Path) -> None:
    whole = reduces(workshop, tmp_path / "whole", 1)
    assert whole >= 3
    assert reduces(workshop, tmp_path / "four", 4) == whole


@contextlib.contextmanager
def briefly(rank: int, folder: Path) -> Iterator[None]:
    """Warm up for a few steps, however unsteady the machine is."""
    del rank, folder
    speed.LONGEST_WARMUP = 16
    yield


@pytest.mark.long
def test_sharded_weights_train_as_whole_ones(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two micro-batches, of which only the last one exchanges gradients."""
    settings = {"steps": 10, "precision": "fp32", "dropout": 0.0, "distributed": "fsdp"}
    spec = workshop.spec(probe=None, speed=settings, optimizer={"accumulation_steps": 2})
    trained = trained_by_two(workshop, spec, tmp_path, briefly)
    ours = trained.record.evidence.speed
    assert trained.record.evidence.speed.proofs[0].lost == "its weights are sharded"
    monkeypatch.setattr(speed, "LONGEST_WARMUP", 16)
    whole = workshop.train(spec.replace(speed=spec.speed.replace(distributed="ddp"))).record.evidence.speed
    assert ours.losses[:20] == pytest.approx(whole.losses[:20], rel=1e-4)
    assert ours.batches == whole.batches


@pytest.mark.long
def test_windows_leave_a_static_graph_as_it_was(workshop: Workshop, tmp_path: Path) -> None:
    """DDP counts the gradients of its first backward pass; a window before it builds a model, which draws numbers."""
    found = []
    for asked in (False, True):
        settings = {"steps": 10, "ddp_static_graph": True, "checks": asked}
        (tmp_path / str(asked)).mkdir()
        trained = trained_by_two(workshop, workshop.spec(probe=None, speed=settings), tmp_path / str(asked), briefly)
        found.append(trained.record.evidence.speed)
    off, on = found
    for name in ("losses", "gradient_norms", "weights", "generators", "inconsistent"):
        assert getattr(off, name) == getattr(on, name), name
    assert (on.portable.lost, len(on.portable.windows), on.portable.ranks) == ("", 3, ())
    assert on.production.repeated
    assert max(error for _, error in on.production.formula) < 1e-12


@contextlib.contextmanager
def wrong_on_the_second(rank: int, _folder: Path) -> Iterator[None]:
    """Compute SDPA wrongly, and LayerNorm but in fp64, in the second process's speed part alone."""
    functional = torch.nn.functional
    plain, norm, attend = engine.Engine.step, functional.layer_norm, functional.scaled_dot_product_attention

    def more(*given: Any, **named: Any) -> torch.Tensor:
        return attend(*given, **named) * 1.01

    def scaled(values: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        return norm(values, *given, **named) * (1.0 if values.dtype == torch.float64 else 1.01)

    def step(self: engine.Engine, *given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if rank and self.part == "speed":
                patch.setattr(functional, "scaled_dot_product_attention", more)
                patch.setattr(functional, "layer_norm", scaled)
            return plain(self, *given)

    engine.Engine.step = step  # type: ignore[method-assign]
    speed.LONGEST_WARMUP = 16
    yield


@pytest.mark.long
def test_the_checks_of_each_process_count(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(probe=None, speed={"steps": 10, "precision": "fp32"})
    trained = trained_by_two(workshop, spec, tmp_path, wrong_on_the_second)
    found = trained.record.evidence.speed
    assert max(error for name, error in found.production.formula if name.startswith("forward")) > 1e-3
    assert any(is_over(error) for error in found.proofs[-1].errors if error.kind == "LayerNorm")


@contextlib.contextmanager
def killed_in_forward(rank: int, folder: Path) -> Iterator[None]:
    """Kill the second process before its first gradients: the first one waits for them in its backward pass."""
    del folder
    if rank == 1:
        torch.nn.functional.layer_norm = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    yield


@contextlib.contextmanager
def with_a_full_disk(rank: int, folder: Path) -> Iterator[None]:
    """Limit the files of the second process, which has a separate cache, to one KiB."""
    if rank == 1:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its log is a file, too
        arguments = (folder / "arguments-1").read_text().split("\n")
        arguments[arguments.index("--cache") + 1] = str(folder / "cache")
        (folder / "arguments-1").write_text("\n".join(arguments))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    yield


@contextlib.contextmanager
def with_a_broken_operation(rank: int, folder: Path) -> Iterator[None]:
    """Let an operation fail in the second process alone."""
    del folder

    def broken(*_: object, **__: object) -> None:
        raise ValueError("no such kernel")

    if rank == 1:
        torch.nn.functional.layer_norm = broken
    yield


@pytest.mark.long
@pytest.mark.parametrize(
    ("around", "code", "words"),
    [
        (killed_in_forward, "unavailable", "another process"),
        (with_a_full_disk, "disk-full", "process 1: "),
        (with_a_broken_operation, "error", "process 1: probe step 0: ValueError: no such kernel"),
    ],
)
def test_the_record_has_the_error_of_the_process_that_failed(
    workshop: Workshop, tmp_path: Path, around: Callable[..., Any], code: str, words: str
) -> None:
    """All that the process which writes the record has seen is a closed connection."""
    trained = trained_by_two(workshop, workshop.spec(probe=PROBE), tmp_path, around, fails=True)
    ending = trained.record.exit
    assert (ending.status, ending.code, ending.is_infrastructure) == ("failed", code, code != "error")
    assert words in ending.message


@contextlib.contextmanager
def without_memory_for_windows(rank: int, folder: Path) -> Iterator[None]:
    """Let the second process have no memory for the windows of its probe, and none pickle an array for the others."""
    del folder
    pickled = torch.distributed.all_gather_object

    def gathered(values: list[Any], value: object, **given: Any) -> None:
        assert not isinstance(value, (np.ndarray, torch.Tensor)), "a pickled array"
        pickled(values, value, **given)

    torch.distributed.all_gather_object = gathered

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    if rank == 1:
        ProbeWindows._train = full
    yield


@pytest.mark.long
def test_windows_that_one_process_has_no_memory_for_cost_the_windows(workshop: Workshop, tmp_path: Path) -> None:
    trained = trained_by_two(workshop, workshop.spec(probe=PROBE), tmp_path, without_memory_for_windows)
    assert trained.record.exit == Exit(status="completed")
    assert trained.probe.portable.lost
    assert trained.probe.portable.windows == ()


def test_a_training_that_fails_leaves_no_error_to_the_next(workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "exit-1.json").write_text(Exit(status="failed", code="labels").model_dump_json())
    workshop.train(workshop.spec(probe={"steps": 1, "portable_steps": 0}), out=out)
    assert not list(out.glob("exit-*"))


def _second(folder: Path) -> int:
    """Return the process id of rank 1 of the training into `folder`."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended since it was listed
            line, variables = (path.parent / "cmdline").read_bytes(), path.read_bytes().split(b"\0")
            if str(folder).encode() in line and b"LOCAL_RANK=1" in variables:
                return int(path.parent.name)
    raise AssertionError("no rank 1 runs")


@pytest.mark.long
def test_a_training_of_which_the_system_kills_one_process_was_not_judged(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(probe={"steps": 200, "portable_steps": 0})
    write_spec(spec, tmp_path / "spec.json")
    expected, killed = Expected(accelerator="cpu", gpus=2), []

    def progress(event: dict[str, Any]) -> None:
        if event.get("part") == "probe" and event["step"] >= 2 and not killed:
            killed.append(_second(tmp_path))
            os.kill(killed[0], signal.SIGKILL)

    code = run_training(
        tmp_path / "spec.json", tmp_path / "out", data=workshop.url, cache=workshop.folder / "cache", platform="here",
        record_id="r", expected=expected, num_processes=expected.gpus, environment={"OMP_NUM_THREADS": "1"},
        on_progress=progress,
    )  # fmt: skip
    record = read_record(tmp_path / "out")
    assert (code, record.fingerprint.num_processes) == (3, 2)
    assert (record.exit.status, record.exit.code) == ("failed", "unavailable")
    assert not processes_below(tmp_path)


@contextlib.contextmanager
def without_decay_on_the_second(rank: int, _folder: Path) -> Iterator[None]:
    """Train without weight decay in the second process alone, after the probe."""

    def change(engine: engine.Engine, _step: int) -> None:
        if rank and engine.part != "probe":
            engine.optimizer.param_groups[0]["weight_decay"] = 0.0

    with pytest.MonkeyPatch.context() as patch:
        before_steps(patch, change)
        yield


@pytest.mark.long
def test_a_fault_of_one_process_names_the_process_and_the_part(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(probe=PROBE, speed={"steps": 10}, learn=LEARN)
    trained = trained_by_two(workshop, spec, tmp_path, without_decay_on_the_second)
    for part in (trained.record.evidence.speed, trained.record.evidence.learn):
        found = part.portable.ranks[0]
        assert (found.rank, found.at, found.stage) == (1, 0, "optimizer")
    loaded = load_record(trained.folder)
    (cause,) = compare(loaded, loaded).causes  # of `speed`, which comes first
    assert cause.code == "optimizer"
    assert said(cause.why).startswith("process 1 of the reference differs from its other processes: ")


# Without annotations, as `_count`.
def _add(state, bucket):
    del state
    done = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda reduced: reduced.value()[0])


@contextlib.contextmanager
def with_added_gradients(rank: int, folder: Path) -> Iterator[None]:
    """Let processes get the sum of their gradients instead of the mean, after the probe."""
    del rank, folder

    class Added(DistributedDataParallel):
        """Adds, but in the first model."""

        models = 0

        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            Added.models += 1
            if Added.models > 1:
                super().register_comm_hook(None, _add)

        def register_comm_hook(self, *_: Any) -> None:
            """Keep the first hook: `speed` times its own."""

    engine.DistributedDataParallel = Added
    yield


@pytest.mark.long
def test_gradients_that_are_added_instead_of_averaged_show_in_one_record(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(probe=PROBE, speed={"steps": 10}, learn=LEARN)
    trained = trained_by_two(workshop, spec, tmp_path, with_added_gradients)
    proofs = (trained.record.evidence.probe, trained.record.evidence.speed, trained.record.evidence.learn)
    over = [any(is_over(error) for proof in part.proofs for error in proof.errors) for part in proofs]
    assert over == [False, True, True]
    loaded = load_record(trained.folder)
    judgement = compare(loaded, loaded)
    assert [cause.code for cause in judgement.causes] == ["gradient"]
    assert judgement.first_divergence.stage == "gradient"


def _lose_bucket(state, bucket):
    if state.at == 3 and state.ranks.rank:
        bucket.buffer().zero_()
    tensor = bucket.buffer().div_(2)
    return torch.distributed.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


@contextlib.contextmanager
def planted(rank: int, folder: Path) -> Iterator[None]:
    """Plant the fault that the folder names into step 3 of the curve."""
    fault, plain, norm_of = folder.name, engine.Engine.step, torch.nn.utils.clip_grad_norm_
    built = engine.Engine.__init__

    def build(self: engine.Engine, *given: Any, **named: Any) -> None:
        built(self, *given, **named)
        self.at = -1
        if fault == "bucket" and self.part == "learn":
            self.model.register_comm_hook(self, _lose_bucket)

    def step(self: engine.Engine, step: int, batch: Any) -> Any:
        self.at = step
        quiet, update = self._quiet, self.optimizer.step
        if self.part == "learn" and self.ranks.world > 1 and step == 3:
            if fault == "exchange":
                self._quiet = lambda **_: self.model.no_sync()
            if fault == "update" and rank:
                self.optimizer.step = lambda: None
        try:
            with pytest.MonkeyPatch.context() as patch:
                if fault == "norm" and rank and step == 3:
                    patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda values, most: norm_of(values, most / 2) * 2)
                return plain(self, step, batch)
        finally:
            self._quiet, self.optimizer.step = quiet, update

    engine.Engine.__init__, engine.Engine.step = build, step  # type: ignore[method-assign]
    yield


@pytest.fixture(scope="module")
def by_two(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedRecord]:
    """Return a function that trains a curve with two processes and a fault."""
    spec = workshop.spec(probe=None, learn={**LEARN, "steps": 8, "evaluate_every": 8, "checkpoint_every": 8})

    def train(fault: str) -> LoadedRecord:
        folder = tmp_path_factory.mktemp("two") / fault
        folder.mkdir()
        return load_record(trained_by_two(workshop, spec, folder, planted).folder)

    return train


@pytest.mark.long
def test_a_fault_of_the_exchange_is_named_by_its_first_step(by_two: Callable[[str], LoadedRecord]) -> None:
    """As in pytorch 104336, 84803, 115607 and DeepSpeed 1801."""
    honest = by_two("none")
    faults = {"exchange": "gradient", "bucket": "gradient", "update": "optimizer", "norm": "gradient"}
    for fault, code in faults.items():
        judgement = compare(honest, by_two(fault))
        assert [cause.code for cause in judgement.causes] == [code], fault
        assert judgement.first_divergence.step == 3, fault
        says_both = ["differs from the reference's: step 4" in line for line in said(judgement.causes[0].evidence)]
        assert any(says_both) or fault != "exchange"
    assert compare(honest, by_two("none")).verdict == "pass"
