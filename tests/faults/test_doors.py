"""Faults that once passed or were named wrongly, by real trainings: those behind five doors.

Door 1: two records of one GPU were not compared bit by bit. Door 2: late faults of `speed` on a machine that rounds
otherwise, which still pass. Door 3: native kernels that compute wrongly were `precision`. Door 4: checks that were
lost. Door 5: a record that contradicts itself, on every platform alike.

Each fault is trained once, with kernels of another instruction set. Beside an honest training with the same kernels it
is on an equal machine; beside one with the machine's own kernels it is behind a different instruction set.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.faults.bench import two_cores
from bench.faults.catalogue import OTHER_ISA, Entry
from bench.faults.injectors.doors import KERNELS, LATE, LONG, LOST, STATED
from bench.faults.production import doors_spec
from bench.faults.trainer import Laboratory, Side, Trainer
from bench.faults.world import World
from plumbline.judge import compare
from plumbline.judge.confirm import begin
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.fingerprint import Gpu
from plumbline.schema.verdict import Judgement

pytestmark = pytest.mark.long

_GPU = Gpu(
    name="NVIDIA H100 80GB HBM3", uuid="GPU-1", pci="0", compute_capability="9.0", memory_bytes=85 * 10**9, num_sms=132
)


def on_one_gpu(loaded: LoadedRecord, **fingerprint: Any) -> LoadedRecord:
    """Return a record of a CPU as one that names a GPU, with the generator that a GPU has."""
    record = loaded.record
    assert record.evidence.probe is not None
    probe = record.evidence.probe
    generators = {**probe.generators, "cuda:0": tuple((step, "0" * 16) for step in range(probe.num_steps))}
    changed = record.replace(
        fingerprint=record.fingerprint.replace(gpus=(_GPU,), **fingerprint),
        evidence=record.evidence.replace(probe=probe.replace(generators=generators)),
    )
    return LoadedRecord(changed, loaded.folder, loaded.arrays)


class Doors:
    """Honest trainings with two kinds of kernels, and one training for each fault."""

    def __init__(self, root: Path, trainer: Trainer) -> None:
        world = World(root / "world")
        self._spec, self._data, self.trainer = doors_spec(world), world.data, trainer
        self.equal, self.again = self._train("equal", OTHER_ISA), self._train("again", OTHER_ISA)
        self.other = self._train("other", {})
        self._faults: dict[str, LoadedRecord] = {}

    def side(self, inject: str, environment: dict[str, str]) -> Side:
        return Side(self._spec, self._data, "here", inject, environment)

    def _train(self, name: str, environment: dict[str, str], inject: str = "") -> LoadedRecord:
        record = self.trainer.train(self.side(inject, environment), name)
        assert record.record.exit.status == "completed"
        return record

    def fault(self, entry: Entry) -> LoadedRecord:
        if entry.name not in self._faults:
            self._faults[entry.name] = self._train(entry.name, OTHER_ISA, entry.inject)
        return self._faults[entry.name]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    root = tmp_path_factory.mktemp("doors")
    with Trainer(two_cores()[0], root / "work") as trainer:
        yield Doors(root, trainer)


def judged(reference: LoadedRecord, candidate: LoadedRecord) -> Judgement:
    return compare(reference, candidate, throughput=False)


def codes(judgement: Judgement) -> set[str]:
    return {cause.code for cause in judgement.causes}


def named(entry: Entry) -> str:
    return entry.name


def test_honest_trainings_pass_on_any_of_these_machines(doors: Doors) -> None:
    for reference, candidate in ((doors.other, doors.equal), (doors.equal, doors.other), (doors.equal, doors.again)):
        assert judged(reference, candidate).verdict == "pass"
        assert judged(on_one_gpu(reference), on_one_gpu(candidate)).verdict == "pass"


@pytest.mark.parametrize("entry", LATE, ids=named)
def test_two_records_of_one_gpu_that_repeats_itself_have_equal_bits(doors: Doors, entry: Entry) -> None:
    found = doors.fault(entry)
    for reference, candidate in ((doors.equal, found), (on_one_gpu(doors.equal), on_one_gpu(found))):
        judgement = judged(reference, candidate)
        assert (judgement.verdict, codes(judgement)) == ("drift", {entry.expected})
        assert "speed.bits" in {finding.check for finding in judgement.findings}
    # Where bits are not due, its own steps are beside their definitions, or draw another number of times. No bits are
    # due where the GPU does not show that it repeats itself.
    unmeasured = [on_one_gpu(loaded, operations={}) for loaded in (doors.equal, found)]
    for reference, candidate in ((doors.other, found), (on_one_gpu(doors.other), on_one_gpu(found)), unmeasured):
        judgement = judged(reference, candidate)
        assert (judgement.verdict, codes(judgement)) == ("drift", {entry.expected})
        assert "speed.bits" not in {finding.check for finding in judgement.findings}


@pytest.mark.parametrize("entry", KERNELS, ids=named)
def test_a_wrong_kernel_is_no_precision(doors: Doors, entry: Entry) -> None:
    found = doors.fault(entry)
    for reference in (doors.equal, doors.other):
        for left, right in ((reference, found), (on_one_gpu(reference), on_one_gpu(found))):
            judgement = judged(left, right)
            assert (judgement.verdict, codes(judgement)) == ("drift", {entry.expected})
            if entry.name == "one-layer-norm-with-other-eps":
                assert judgement.first_divergence.at == "bert.encoder.layer.0.attention.output.LayerNorm"


def test_experiments_confirm_the_module_that_differs_first(doors: Doors) -> None:
    """Its output lies within rounding, and the next module's does not."""
    entry = next(entry for entry in KERNELS if entry.name == "one-layer-norm-with-other-eps")
    found = doors.fault(entry)
    state = begin(doors.other, found, judged(doors.other, found), 8)
    laboratory = Laboratory(doors.trainer, doors.side("", {}), doors.side(entry.inject, OTHER_ISA))
    (cause,) = laboratory.confirm(doors.other, found, state).judgement.causes
    assert (cause.code, cause.sure) == ("operator", "confirmed")
    assert "attention.output.LayerNorm" in sentence_of(cause.why)


@pytest.mark.parametrize("entry", LOST, ids=named)
def test_lost_checks_are_no_silent_pass(doors: Doors, entry: Entry) -> None:
    found = doors.fault(entry)
    for reference, candidate in (
        (doors.equal, found),
        (doors.other, found),
        (on_one_gpu(doors.other), on_one_gpu(found)),
    ):
        judgement = judged(reference, candidate)
        assert (judgement.verdict, codes(judgement)) == ("inconclusive", set())
        lost = [finding.check for finding in judgement.findings if finding.outcome == "inconclusive"]
        assert lost == ["speed.portable"]


@pytest.mark.parametrize("entry", STATED, ids=named)
def test_a_record_that_contradicts_itself_drifts_from_its_twin(doors: Doors, entry: Entry) -> None:
    """Two platforms share the fault, and neither has a baseline."""
    found = doors.fault(entry)
    for reference in (found, doors.equal, doors.other):
        for left, right in ((reference, found), (on_one_gpu(reference), on_one_gpu(found))):
            judgement = judged(left, right)
            assert judgement.verdict == "drift"
            assert entry.expected in codes(judgement)
    assert codes(judged(found, found)) == {entry.expected}


@pytest.mark.parametrize("entry", LONG, ids=named)
def test_a_window_of_the_curve_trains_on_long_rows(doors: Doors, entry: Entry) -> None:
    found = doors.fault(entry)
    for reference in (doors.equal, doors.other):
        judgement = judged(reference, found)
        assert (judgement.verdict, codes(judgement)) == ("drift", {entry.expected})
