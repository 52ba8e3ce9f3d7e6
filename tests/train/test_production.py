"""Production leg: faults of production kernels are named and confirmed; other kernels are not flagged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.train.workload import Workload
from plumbline.data.datasets.publish import publish_weights
from plumbline.judge import compare
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.production import ProductionEvidence
from plumbline.schema.sketch import marks_of
from plumbline.schema.spec import OptimizerSpec, RunSpec
from plumbline.schema.tolerance import production_limit
from plumbline.schema.verdict import Judgement
from plumbline.train.context import Context
from plumbline.train.job import TrainJob, open_run
from plumbline.train.optimizers import make_optimizer
from plumbline.train.portable.leg import PortableLeg
from plumbline.train.production.leg import ProductionLeg
from plumbline.train.update import UpdateCheck
from plumbline.train.weights import make_weights
from tests.train.conftest import Workshop
from tests.train.production_faults import FAULTS

SPEED: dict[str, Any] = {"steps": 10, "precision": "bf16"}


@dataclass
class Shop:
    """A whole training, and its context to repeat only the production leg."""

    trained: LoadedRecord
    context: Context
    portable: PortableLeg

    def replay(self, **changes: Any) -> ProductionEvidence:
        spec = self.trained.record.spec
        leg = ProductionLeg(self.context, spec.speed.replace(**changes), spec.probe, self.portable)
        leg.run()
        assert leg.evidence is not None
        return leg.evidence

    def judged(self, replay: ProductionEvidence, **fingerprint: Any) -> Judgement:
        """Compare a record with this replay with the honest one."""
        record = self.trained.record
        speed = record.evidence.speed.replace(production=replay)
        evidence = record.evidence.model_copy(update={"speed": speed})
        changed = record.model_copy(
            update={"evidence": evidence, "fingerprint": record.fingerprint.replace(**fingerprint)}
        )
        return compare(self.trained, LoadedRecord(changed, self.trained.folder), throughput=False)


LENGTH = 64


def _spec(workshop: Workshop, **changes: Any) -> RunSpec:
    """Return a spec whose batches are padded and whose gradients are clipped."""
    probe = {"steps": 3, "evaluation_rows": 8, "portable_steps": 2}
    spec = workshop.spec(speed=SPEED | changes, optimizer={"max_grad_norm": 0.1}, probe=probe)
    return spec.replace(data=spec.data.replace(sequence_length=LENGTH))


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Return a workshop whose model reads more tokens than most rows have."""
    made = Workshop(tmp_path_factory.mktemp("padded"), "sequence-classification")
    made.model["max_position_embeddings"] = LENGTH
    made.weights_sha256 = make_weights(made.model, 3, made.weights)
    publish_weights(made.weights, made.store, made.weights_sha256)
    return made


@pytest.fixture(scope="module")
def shop(padded: Workshop) -> Iterator[Shop]:
    spec = _spec(padded)
    trained = load_record(padded.train(spec).folder)
    assert not trained.batches["attention_mask"].all()
    job = TrainJob(
        spec=spec, out=padded.out(), data=padded.url, cache=padded.folder / "cache", platform="here",
        record_id="r",
    )  # fmt: skip
    with open_run(job, threading.Event()) as context:
        portable = PortableLeg(context, spec.probe)
        portable.run()
        yield Shop(trained, context, portable)


def test_an_honest_replay_repeats_itself_and_passes(shop: Shop) -> None:
    speed = shop.trained.record.evidence.speed
    assert speed.production.repeated
    assert {"forward", "gradient"} == {tap.stage for tap in speed.production.taps}
    assert any("fused_adamw" in name for name in speed.production.operators)
    judgement = shop.judged(shop.replay())
    assert judgement.verdict == "pass"
    assert any(finding.check == "production.equality" for finding in judgement.findings)


def test_the_trail_is_that_of_the_probe_and_of_a_second_run(shop: Shop, padded: Workshop) -> None:
    trail = shop.trained.record.evidence.speed.trail
    expected = marks_of(dict(shop.trained.batches))
    assert all(list(trail.marks[name][:3]) == marks for name, marks in expected.items())
    again = padded.train(_spec(padded)).record.evidence.speed.trail
    shared = min(len(again.losses), len(trail.losses))
    assert again.losses[:shared] == trail.losses[:shared]
    assert dict(again.weights)[16] == dict(trail.weights)[16]


_SAMPLE = (
    "sdpa-ignores-padding", "sdpa-backward-halved", "fused-without-decay", "relu-for-gelu", "linear-in-three-bits",
    "every-second-row-skipped", "clipped-at-four-times-the-norm", "loss-smoothed",
)  # fmt: skip
"""Faults of which each has a different cause or place; `make tables` plants all."""


@pytest.mark.parametrize(
    "name", [name if name in _SAMPLE else pytest.param(name, marks=pytest.mark.whole_table) for name in FAULTS]
)
def test_a_fault_of_production_kernels_alone_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant, code, place = FAULTS[name]
    with monkeypatch.context() as patch:
        plant(patch)
        replay = shop.replay()
    for fingerprint in ({}, {"cpu": shop.trained.record.fingerprint.cpu.replace(isa="AVX2")}):
        judgement = shop.judged(replay, **fingerprint)
        assert judgement.verdict == "drift"
        assert judgement.causes[0].code == code
        assert place in judgement.first_divergence.at


@pytest.mark.parametrize("changes", [
    {"attention": "eager"}, {"fused_optimizer": False}, {"precision": "fp16"}, {"precision": "fp32"},
    {"precision": "fp32", "attention": "eager"}, {"precision": "fp16", "attention": "eager"},
    {"optimizer": "sgd"}, {"gradient_checkpointing": True, "optimizer": "adafactor", "fused_optimizer": False},
    {"padding": "longest", "fused_optimizer": False, "foreach_optimizer": True},
])  # fmt: skip
def test_other_kernels_are_within_their_limits(shop: Shop, changes: dict[str, Any]) -> None:
    replay = shop.replay(**changes)
    precision = changes.get("precision", "bf16")
    assert not replay.trials
    for tap in replay.taps:
        limit = production_limit(tap.envelope, tap.stage, precision)
        assert tap.error <= limit / 2


def test_a_whole_training_that_skips_rows_or_padding_drifts(
    shop: Shop, padded: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a real training, loaded and compared as the command does."""
    with monkeypatch.context() as patch:
        FAULTS["every-second-row-skipped"][0](patch)
        skipping = load_record(padded.train(_spec(padded)).folder)
    judgement = compare(shop.trained, skipping, throughput=False)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "data.order")
    with monkeypatch.context() as patch:
        FAULTS["sdpa-ignores-padding"][0](patch)
        unmasked = load_record(padded.train(_spec(padded)).folder)
    judgement = compare(shop.trained, unmasked, throughput=False)
    assert judgement.verdict == "drift"
    assert (judgement.causes[0].code, judgement.causes[0].sure) == ("operator", "confirmed")
    assert judgement.first_divergence.at == "bert.encoder.layer.0.attention.self"


def test_a_gradient_of_few_entries_is_not_judged_by_one_draw_of_its_rounding(tmp_path: Path) -> None:
    """The rounded run of this batch happens to round the head's bias ten times less than bf16's kernels do."""
    spec = Workload(tmp_path, "tiny", 16).spec(8, probe={"steps": 3, "portable_steps": 1}, speed=SPEED)
    job = TrainJob(
        spec=spec.replace(seed=8), out=tmp_path / "out", data=f"file://{tmp_path}/store", cache=tmp_path / "cache",
        platform="here", record_id="r",
    )  # fmt: skip
    with open_run(job, threading.Event()) as context:
        portable = PortableLeg(context, spec.probe)
        portable.run()
        leg = ProductionLeg(context, spec.speed, spec.probe, portable)
        leg.run()
    shares = {tap.name: tap.error / production_limit(tap.envelope, tap.stage, "bf16") for tap in leg.evidence.taps}
    assert not leg.evidence.trials
    assert max(shares.values()) <= 0.5


def test_a_loss_as_autocast_rounds_it_on_a_gpu_is_no_fault(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """There torch rounds the log-probabilities to bf16, and adds them up in fp32; an H100's loss was 1.3e-4 off."""

    def as_on_a_gpu(logits: torch.Tensor, labels: torch.Tensor, **_: object) -> torch.Tensor:
        rounded = torch.nn.functional.log_softmax(logits.float(), -1).bfloat16().float()
        return torch.nn.functional.nll_loss(rounded, labels)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "cross_entropy", as_on_a_gpu)
        replay = shop.replay()
    judgement = shop.judged(replay, cpu=shop.trained.record.fingerprint.cpu.replace(isa="AVX2"))
    assert judgement.verdict == "pass"
    exact = shop.replay().steps[0].loss
    assert abs(replay.steps[0].loss - exact) > 1e-5 * exact


@pytest.mark.parametrize(("kind", "wrong"), [
    ("sgd", {"momentum": 0.8}), ("sgd", {"nesterov": True}), ("adafactor", {"d": 2.0}),
    ("adafactor", {"beta2_decay": -0.7}), ("adamw", {"eps": 1e-4}),
])  # fmt: skip
def test_an_update_is_compared_with_its_own_optimizers_definition(kind: str, wrong: dict[str, Any]) -> None:
    spec = OptimizerSpec(weight_decay=0.1)
    for settings, is_beyond in (({}, False), (wrong, True)):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(7, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 3))
        optimizer = make_optimizer(model, spec, fused=kind != "adafactor", kind=kind)
        for group in optimizer.param_groups:
            group.update(settings)
        optimizer.param_groups[1]["lr"] *= 0.5  # the schedule differs, the optimizer is right
        check = UpdateCheck(SimpleNamespace(bare=model, optimizer=optimizer, spec=SimpleNamespace(optimizer=spec)))
        worst = 0.0
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 7)).square().sum().backward()
            check.before()
            optimizer.step()
            errors = check.errors([group["lr"] for group in optimizer.param_groups])
            worst = max(worst, *(float(error) for _, error in errors))
        assert (worst > 1.0) is is_beyond, worst
