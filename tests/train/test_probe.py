"""The probe's evidence: complete, repeatable, and within rounding."""

from __future__ import annotations

import gc
import math
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers.models.bert import modeling_bert

from plumbline.environments.launch import run_training
from plumbline.environments.nodes import Nodes
from plumbline.judge import compare
from plumbline.judge.canary import prove
from plumbline.judge.spec_precision import different_precision
from plumbline.records import load_record
from plumbline.schema.fingerprint import Expected
from plumbline.schema.record import read_record
from plumbline.schema.sketch import mark
from plumbline.schema.spec import write_spec
from plumbline.schema.suite import Gates
from plumbline.train.context import Context
from plumbline.train.engine import Engine
from plumbline.train.failure import TrainingFailedError
from plumbline.train.ranks import Ranks
from tests.train.conftest import RECIPE, Trained, Workshop, before_steps, differing_steps, tap_errors, within_limits


def digests(trained: Trained) -> dict[str, object]:
    evidence = trained.record.evidence.to_json()
    evidence.pop("speed")
    return {**evidence, "parts": [part.sha256 for part in trained.record.parts]}


def is_kernel(trained: Trained, other: Trained) -> bool:
    """Return whether the judge passes the pair, as rounding or equal."""
    judgement = compare(load_record(trained.folder), load_record(other.folder))
    equal = digests(trained) == digests(other)
    return judgement.verdict == "pass" and (equal or any(note.code == "rounding" for note in judgement.notes))


def test_every_rung_of_the_ladder_is_there(baseline: Trained, workshop: Workshop) -> None:
    record, probe = baseline.record, baseline.probe
    assert record.exit.status == "completed"
    assert {part.key for part in record.parts} == {
        "batches.safetensors", "sketches.safetensors", "state.safetensors", "evaluation.safetensors", "rows.parquet",
    }  # fmt: skip
    assert record.evidence.data.manifest_sha256 == workshop.manifest.digest
    assert list(range(probe.num_steps)) == list(range(6))
    for step in probe.steps_of():
        assert set(step.batch) == {"row_ids", "input_ids", "attention_mask", "token_type_ids", "labels"}
        assert {"python", "numpy", "torch"} <= set(step.generators)
        assert math.isclose(step.loss, step.defined_loss, rel_tol=1e-6)
        assert step.clipped_norm <= min(step.gradient_norm, 1.0) * 1.000001
    assert {tap.stage for tap in probe.taps} == {"forward", "gradient", "optimizer"}
    assert {tap.step for tap in probe.taps} == {0, 5}
    assert probe.evaluation.num_rows == 24
    assert not probe.evaluation.training_mode
    assert probe.at(0).is_training


def test_the_parts_are_what_the_digests_say(baseline: Trained) -> None:
    arrays = load_record(baseline.folder).batches
    for step in baseline.probe.steps_of():
        for name, digest in step.batch.items():
            assert mark(arrays[name][step.step]) == digest
    rows = pq.read_table(baseline.folder / "rows.parquet")
    assert rows.num_rows == baseline.record.evidence.data.num_rows == 48 + 24
    assert set(arrays["row_ids"].reshape(-1)) <= set(rows["row_id"].to_pylist())


def test_what_was_built_is_recorded_not_what_was_configured(baseline: Trained) -> None:
    modules = dict(baseline.record.evidence.model.modules)
    assert "eps=1e-12" in modules["bert.embeddings.LayerNorm"]
    assert "p=0.0" in modules["bert.encoder.layer.0.output.dropout"]
    assert "scaling=" in modules["bert.encoder.layer.0.attention.self"]
    assert modules["bert.encoder.layer.0.intermediate.intermediate_act_fn"].startswith("GELUActivation")


def test_the_same_spec_again_gives_the_same_bits(workshop: Workshop, baseline: Trained) -> None:
    assert digests(workshop.train(workshop.spec())) == digests(baseline)


@pytest.mark.long
def test_rounding_of_two_machines_stays_within_rounding(workshop: Workshop, baseline: Trained) -> None:
    """Of threads and instruction sets the fault benchmark has controls."""
    spec, out = workshop.spec(), workshop.out()
    write_spec(spec, out.with_suffix(".json"))
    with socket.create_server(("127.0.0.1", 0)) as found:
        first = f"127.0.0.1:{found.getsockname()[1]}"

    def train(rank: int) -> int:
        return run_training(
            out.with_suffix(".json"), out.with_name(f"{out.name}-{rank}"), data=workshop.url,
            cache=workshop.folder / f"cache-{rank}", platform="two", record_id="two", timeout_seconds=120,
            environment={"OMP_NUM_THREADS": "1"}, expected=Expected(nodes=2), nodes=Nodes(2, rank, first),
        )  # fmt: skip

    with ThreadPoolExecutor(2) as machines:
        assert list(machines.map(train, range(2))) == [0, 0]
    assert not out.with_name(f"{out.name}-1").joinpath("record.json").exists()
    out = out.with_name(f"{out.name}-0")
    other = Trained(out, read_record(out))
    assert other.record.fingerprint.num_processes == 2
    assert other.record.fingerprint.topology["nodes"] == "2"
    for field in ("batch", "generators", "learning_rate"):
        assert not differing_steps(baseline, other, field)
    assert other.record.evidence.model.weights_sha256 == baseline.record.evidence.model.weights_sha256
    assert within_limits(baseline, other)
    assert is_kernel(baseline, other)


def test_attention_kernels_stay_within_rounding(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = modeling_bert.BertForSequenceClassification.__init__

    def build(self, config):
        config._attn_implementation = "sdpa"
        plain(self, config)

    monkeypatch.setattr(modeling_bert.BertForSequenceClassification, "__init__", build)
    sdpa = workshop.train(workshop.spec())
    assert sdpa.record.fingerprint.numerics["probe.attention"] == "sdpa"
    assert differing_steps(baseline, sdpa, "logits")
    assert not differing_steps(baseline, sdpa, "batch")
    assert within_limits(baseline, sdpa)
    assert is_kernel(baseline, sdpa)


def test_a_fused_optimizer_stays_within_rounding(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *args, **given: plain(*args, **{**given, "fused": True}))
    fused = workshop.train(workshop.spec())
    assert fused.probe.optimizer[0].settings["fused"] is True
    assert differing_steps(baseline, fused, "weights")
    assert within_limits(baseline, fused)
    assert is_kernel(baseline, fused)


def test_micro_batches_stay_within_rounding(workshop: Workshop, baseline: Trained) -> None:
    """Of the probe alone: the learning curve's and the speed part's micro-batches are the optimizer's."""
    parts = workshop.train(workshop.spec(probe={**RECIPE["probe"], "micro_batch": 3}))
    assert parts.record.spec.optimizer.accumulation_steps == 1
    assert not differing_steps(baseline, parts, "batch")
    assert {(tap.name, tap.shape) for tap in parts.probe.taps} == {(tap.name, tap.shape) for tap in baseline.probe.taps}
    assert within_limits(baseline, parts)


def test_a_wrong_operator_exceeds_rounding_at_its_module(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.nn.functional.layer_norm

    def other(values, shape, weight=None, bias=None, eps=1e-5):
        return plain(values, shape, weight, bias, eps + 1e-5)

    monkeypatch.setattr(torch.nn.functional, "layer_norm", other)
    faulty = workshop.train(workshop.spec())
    assert not within_limits(baseline, faulty)
    assert not is_kernel(baseline, faulty)
    errors = tap_errors(baseline, faulty)
    beyond = [key for key, error in errors.items() if key[0] == 0 and key[1] == "forward" and error > 1e-5]
    assert beyond[0][2] == "bert.embeddings.LayerNorm"


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("precision", "linear", "dtype"),
    [("fp32", 23, "float32"), ("bf16", 7, "bfloat16"), ("fp16", 10, "float16"), ("fp64", 52, "float64")],
)
def test_precisions_are_in_force_and_recorded(workshop: Workshop, precision: str, linear: int, dtype: str) -> None:
    probe = {"steps": 3, "evaluation_rows": 8, "precision": precision}
    result = workshop.train(workshop.spec(probe=probe))
    assert result.record.fingerprint.mantissa_bits["linear"] == linear
    assert result.probe.at(0).logits_dtype == dtype
    taps = {tap.name: tap.dtype for tap in result.probe.taps if tap.stage == "forward"}
    assert taps["bert.encoder.layer.0.attention.self.query"] == dtype
    assert (result.probe.at(0).loss_scale is not None) == (precision == "fp16")
    # The judge takes the record for what its spec asks, and finds its canary's faults in it.
    loaded = load_record(result.folder)
    assert compare(loaded, loaded).verdict == "pass"
    assert [each.verdict for each in prove(loaded, Gates())] == ["drift"] * 3


def test_tf32_is_set_on_every_leaf_and_read_back(workshop: Workshop) -> None:
    probe = {"steps": 2, "evaluation_rows": 8, "precision": "tf32"}
    result = workshop.train(workshop.spec(probe=probe))
    numerics = result.record.fingerprint.numerics
    assert different_precision(load_record(result.folder)) is None
    leaves = {name: value for name, value in numerics.items() if name.endswith("fp32_precision")}
    assert len(leaves) == 9
    assert set(leaves.values()) == {"tf32"}


def test_fresh_memory_is_filled_at_the_first_step_alone(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that reads memory it never wrote is not finite there; further fills would find nothing new."""
    filled: list[bool] = []
    before_steps(monkeypatch, lambda *_: filled.append(bool(torch.empty(8).isnan().all())))
    workshop.train(workshop.spec(probe={"steps": 3, "portable_steps": 0}))
    assert filled == [True, False, False]
    forward = torch.nn.LayerNorm.forward
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda self, x: forward(self, x) + torch.empty_like(x) * 0)
    with pytest.raises(TrainingFailedError, match="loss is nan"):
        workshop.train(workshop.spec(probe={"steps": 3, "portable_steps": 0}))


@pytest.mark.long
@pytest.mark.parametrize("cyclic", [False, True])
def test_each_model_of_a_run_has_the_device_to_itself(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, cyclic: bool
) -> None:
    """The models of a part are freed before the next part builds its own."""
    plain = Engine.__init__
    made: list[weakref.ref[Any]] = []
    alive: list[tuple[str, int]] = []

    def build(self: Engine, spec: Any, model: Any, ranks: Any, **given: Any) -> None:
        alive.append((given["part"], sum(item() is not None for item in made)))
        plain(self, spec, model, ranks, **given)
        self.torchs_own = self if cyclic else None  # as some of torch's releases, wrappers and compilers leave them
        made.extend((weakref.ref(model), weakref.ref(self.optimizer)))

    monkeypatch.setattr(Engine, "__init__", build)
    probe = {"steps": 2, "evaluation_rows": 8}
    learn = {"steps": 2, "evaluate_every": 2, "checkpoint_every": 100, "evaluation_rows": 8}
    gc.disable()  # what the collector would find by chance does not count
    try:
        workshop.train(workshop.spec(probe=probe, speed={"steps": 10, "precision": "fp32"}, learn=learn))
    finally:
        gc.enable()
    assert [part for part, _ in alive] == [*["probe"] * 3, "speed", "speed", "learn"]
    # The plain model stands beside that of `speed`, with which it is compared.
    alone = (0, 3, 5) if cyclic else (0, 1, 2, 3, 5)
    assert [alive[place][1] for place in alone] == [0] * len(alone)


def test_on_a_gpu_freed_memory_goes_back_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    empty: Any = (None,) * 5
    Context(None, Ranks(device=torch.device("cpu")), *empty).release()
    assert calls == []
    Context(None, Ranks(device=torch.device("cuda", 0)), *empty).release()
    assert calls == ["emptied"]
