"""Windows of the probe: equal numbers for equal formulas, different ones for the smallest change."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.models.bert import modeling_bert

from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import PortableEvidence
from plumbline.schema.fingerprint import Expected
from plumbline.schema.portable_parts import window_parts
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.train import probe
from plumbline.train.models.model import build_model, load_weights
from plumbline.train.portable import probe_windows
from plumbline.train.portable.probe_windows import ProbeWindows
from plumbline.train.ranks import Ranks
from plumbline.train.selfcheck import (
    ShippedTraining,
    first_difference,
    first_step,
    golden_windows,
    shipped_spec,
    shipped_weights,
)
from tests.commands import run_plumbline
from tests.said import said
from tests.train.conftest import Workshop, before_steps


def _trained(task: Any = "sequence-classification", attention: Any = "eager", **changes: Any) -> PortableEvidence:
    spec = shipped_spec(task, attention)
    weights = changes.pop("weights", None) or shipped_weights(spec)
    spec = spec.replace(**changes)
    return ProbeWindows(ShippedTraining(spec, Ranks(), weights), ProbeSpec.model_validate(spec.probe)).run()


@pytest.fixture(scope="module")
def right() -> PortableEvidence:
    return _trained()


@pytest.mark.first(1)
@pytest.mark.parametrize("task", ["sequence-classification", "masked-lm"])
def test_eager_and_fused_attention_train_the_shipped_numbers(task: Any) -> None:
    for attention in ("eager", "sdpa"):
        steps = _trained(task, attention).windows
        assert first_difference(golden_windows()[task], steps) == ""


@pytest.mark.long
def test_a_different_instruction_set_passes_the_shipped_numbers() -> None:
    own = {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment = os.environ | own
    assert json.loads(run_plumbline("train", "--selfcheck", "--json", env=environment).stdout)["verdict"] == "pass"


def _built(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    def loaded(model: Any, weights: Any) -> None:
        load_weights(model, weights)
        change(model)

    monkeypatch.setattr(probe_windows, "load_weights", loaded)


def _checkpointed(model: Any) -> None:
    model.activation_checkpointing_enable()


@pytest.mark.long
@pytest.mark.parametrize("task", ["sequence-classification", "masked-lm"])
def test_modules_called_again_in_the_backward_pass_train_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, task: Any
) -> None:
    plain = _trained(task)
    _built(monkeypatch, _checkpointed)
    checkpointed = _trained(task)
    for ours, theirs in zip(plain.windows, checkpointed.windows, strict=True):
        assert (ours.loss, ours.gradients, ours.weights) == (theirs.loss, theirs.gradients, theirs.weights)


def _eps(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1.01e-12


def _scale(model: Any) -> None:
    model.bert.encoder.layer[1].attention.self.scaling *= 1 + 1e-7


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (_eps, "outputs of step 0: bert.embeddings.LayerNorm"),
        (_scale, "outputs of step 0: bert.encoder.layer.1.attention.self"),
    ],
)
def test_the_smallest_change_of_a_formula_changes_the_numbers_at_its_module(
    right: PortableEvidence, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], place: str
) -> None:
    _built(monkeypatch, change)
    changed = _trained()
    assert first_difference(right.windows, changed.windows) == place


def test_a_different_order_of_operations_is_no_difference(
    right: PortableEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = functional.linear

    def in_halves(x: torch.Tensor, w: torch.Tensor, b: Any = None) -> torch.Tensor:
        half = x.shape[-1] // 2
        return linear(x[..., :half], w[..., :half], b) + linear(x[..., half:], w[..., half:])

    def forward(self: Any, input_ids: Any = None, token_type_ids: Any = None, **_rest: Any) -> torch.Tensor:
        places = self.position_ids[:, : input_ids.shape[1]]
        added = self.position_embeddings(places) + self.token_type_embeddings(token_type_ids)
        result: torch.Tensor = self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + added))
        return result

    monkeypatch.setattr(functional, "linear", in_halves)
    monkeypatch.setattr(modeling_bert.BertEmbeddings, "forward", forward)
    changed = _trained()
    assert changed.windows != right.windows
    assert first_difference(right.windows, changed.windows) == ""


def test_what_a_module_rounds_to_half_precision_is_part_of_its_formula(
    right: PortableEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion to fp32 is none: there machines round differently."""
    gelu, places = functional.gelu, []
    for convert in (torch.Tensor.float, torch.Tensor.bfloat16):
        monkeypatch.setattr(functional, "gelu", lambda value, convert=convert, **named: gelu(convert(value), **named))
        places.append(first_difference(right.windows, _trained().windows))
    assert places == ["", "outputs of step 0: bert.encoder.layer.0.intermediate.intermediate_act_fn"]


def test_one_unit_in_the_last_place_of_one_weight_changes_the_numbers(right: PortableEvidence) -> None:
    weights = shipped_weights(shipped_spec("sequence-classification"))
    name = "bert.encoder.layer.1.output.dense.weight"
    weights[name].view(-1)[5] = torch.nextafter(weights[name].view(-1)[5], torch.tensor(1.0))
    assert "layer.1" in first_difference(right.windows, _trained(weights=weights).windows)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "change",
    [{"eps": 1.01e-8}, {"betas": (0.9, 0.99900001)}, {"weight_decay": 0.0100001}, {"learning_rate": 5.0000001e-4}],
)
def test_a_slightly_different_update_changes_the_weights(right: PortableEvidence, change: dict[str, Any]) -> None:
    optimizer = shipped_spec("sequence-classification").optimizer.replace(**change)
    assert first_difference(right.windows, _trained(optimizer=optimizer).windows).startswith("weights of step ")


def test_a_device_that_computes_wrongly_disagrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped bit in one output of the second training."""
    calls = [0]

    def flipped(_module: Any, _given: Any, output: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] != 7:  # the repetition of the first step: two micro-batches in each of three steps come before
            return output
        bits = output.detach().clone().view(torch.int64)
        bits.view(-1)[0] ^= 1 << 30
        return output + (bits.view(torch.float64) - output.detach())

    _built(monkeypatch, lambda model: model.bert.pooler.activation.register_forward_hook(flipped))
    assert not _trained().repeated


def test_a_limit_of_time_ends_the_windows_with_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 10 s here; the first one's repetition counts too."""
    spec = shipped_spec("sequence-classification")
    for limit, num_steps in ((40, 3), (39, 2), (1, 1)):
        clock = itertools.count(step=10)
        monkeypatch.setattr(probe_windows.time, "monotonic", lambda clock=clock: next(clock))
        probe = ProbeSpec(steps=3, portable_steps=3, portable_seconds=limit)
        found = ProbeWindows(ShippedTraining(spec, Ranks(), shipped_weights(spec)), probe).run(repeat=False)
        assert len(found.windows) == num_steps


def test_two_processes_and_one_train_the_same_numbers(right: PortableEvidence) -> None:
    """Each of two trains the whole batch; one that disagrees is named by the first part that differs."""
    spec = shipped_spec("sequence-classification")
    later = right.windows[1].replace(loss="0x1p+0")

    class Two(Ranks):
        other: PortableEvidence

        def gather(self, value: Any) -> list[Any]:
            other = self.other.to_json()
            return [value, other if isinstance(value, dict) else digest_json(other)]

        def anyone(self, flag: bool) -> bool:
            return flag or not self.other.repeated

    two = Two(0, 2)
    trained = ProbeWindows(ShippedTraining(spec, two, shipped_weights(spec)), ProbeSpec.model_validate(spec.probe))
    own = trained.run()
    assert own.windows == right.windows
    for changes, found in (
        ({}, []), ({"windows": (right.windows[0], later)}, [(1, 1, "forward", "logits")]),
        ({"windows": right.windows[:1]}, []), ({"repeated": False}, []),
    ):  # fmt: skip
        two.other = own.replace(**changes)
        compared = trained.compared(own)
        assert compared.repeated is changes.get("repeated", True)
        assert [(each.rank, each.at, each.stage, each.name) for each in compared.ranks] == found


@pytest.mark.long
@pytest.mark.parametrize("fault", [False, True])
def test_a_training_that_a_round_ordered_checks_its_machine_first(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    """A training without such an order pays nothing for it."""
    if fault:
        monkeypatch.setattr(functional, "softmax", lambda *args, **kwargs: torch.softmax(*args, **kwargs) * (1 + 1e-7))
    spec = workshop.spec(probe={"steps": 1, "evaluation_rows": 8, "portable_steps": 1})
    check = workshop.train(spec, expected=Expected(accelerator="cpu")).record.evidence.selfcheck
    expected = ("drift", "outputs of step 0: bert.encoder.layer.0.attention.self") if fault else ("pass", "")
    assert (check.verdict, check.at) == expected
    assert workshop.train(spec).record.evidence.selfcheck is None


def test_versions_that_the_release_does_not_know_are_unknown_if_their_numbers_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal numbers prove equal formulas, whatever the version."""
    monkeypatch.setattr("plumbline.train.selfcheck.transformers.__version__", "99.0")
    assert first_step(torch.device("cpu"), "masked-lm").verdict == "pass"
    monkeypatch.setattr("plumbline.train.selfcheck.first_difference", lambda *_: "outputs of step 0: bert.embeddings")
    assert first_step(torch.device("cpu"), "masked-lm").verdict == "unknown"


def test_a_gradient_of_pure_rounding_is_known_by_the_windows(workshop: Workshop) -> None:
    spec = workshop.spec(probe={"steps": 1, "evaluation_rows": 8, "portable_steps": 1})
    trained = workshop.train(spec)
    record = load_record(trained.folder)
    found = {name for stage, name in Pair(record, record).rounding_only if stage == "gradient"}
    names = {tap.name for tap in trained.probe.taps if tap.name.endswith("attention.self.key.bias")}
    assert names
    assert found == names


def _smoothed_from(patch: pytest.MonkeyPatch, first: int) -> None:
    """Smooth the labels by 2e-5 from a step on: far less than rounding, in each later loss."""
    plain, now = torch.nn.functional.cross_entropy, [0]

    def smoothed(*given: Any, **named: Any) -> torch.Tensor:
        return plain(*given, **named | ({"label_smoothing": 2e-5} if now[0] >= first else {}))

    before_steps(patch, lambda _, step: now.__setitem__(0, step))
    patch.setattr(torch.nn.functional, "cross_entropy", smoothed)


def _scaled_from(patch: pytest.MonkeyPatch, first: int) -> None:
    """Scale attention's scores by 1 + 2e-6 from a step on."""
    plain, now = torch.matmul, [0]

    def scaled(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        found = plain(left, right)
        is_score = found.dim() == 4 and found.shape[-1] == found.shape[-2]
        return found * (1 + 2e-6) if is_score and now[0] >= first else found

    before_steps(patch, lambda _, step: now.__setitem__(0, step))
    patch.setattr(torch, "matmul", scaled)


@pytest.mark.long
@pytest.mark.parametrize(("plant", "first", "code"), [(_smoothed_from, 5, "loss"), (_scaled_from, 3, "operator")])
def test_a_fault_below_rounding_that_comes_late_is_named_on_a_different_machine(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, plant: Any, first: int, code: str
) -> None:
    spec = workshop.spec(probe={"steps": 8, "evaluation_rows": 8, "portable_steps": 4})
    reference, again = (load_record(workshop.train(spec).folder) for _ in range(2))
    assert [step.step for step in reference.record.evidence.probe.portable.windows] == [0, 1, 2, 7]
    with monkeypatch.context() as patch:
        plant(patch, first)
        trained = load_record(workshop.train(spec).folder)
    assert [said(f.detail) for f in compare(reference, _moved(again)).findings if f.outcome != "pass"] == []
    judgement = compare(reference, _moved(trained))
    assert judgement.verdict == "drift"
    assert judgement.causes[0].code == code


def _moved(record: LoadedRecord) -> LoadedRecord:
    """Return a record as of an earlier release on a different processor: its bits may differ by rounding."""
    fingerprint = record.record.fingerprint
    other = fingerprint.replace(operations={}, cpu=fingerprint.cpu.replace(model="other"))
    return replace(record, record=record.record.model_copy(update={"fingerprint": other}))


class _Convolved(nn.Module):
    """Activation with a convolution over tokens and a normalisation over rows; it has no weights."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=eps, affine=False, track_running_stats=False)
        self.register_buffer("kernel", torch.tensor([0.25, 0.5, 0.25]).repeat(width, 1, 1), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        columns = functional.gelu(values).transpose(1, 2)
        result: torch.Tensor = self.norm(functional.conv1d(columns, self.kernel, padding=1, groups=len(self.kernel)))
        return result.transpose(1, 2)


def _convolved(patch: pytest.MonkeyPatch, eps: float) -> None:
    def build(spec: RunSpec, **given: Any) -> Any:
        model = build_model(spec, **given)
        for layer in model.bert.encoder.layer:
            layer.intermediate.intermediate_act_fn = _Convolved(model.config.intermediate_size, eps)
        return model

    for part in (probe, probe_windows):
        patch.setattr(part, "build_model", build)


def test_a_convolution_with_another_eps_is_named_on_a_different_machine(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, records = workshop.spec(probe={"steps": 4, "evaluation_rows": 8, "portable_steps": 4}), []
    for eps in (1e-5, 1e-5, 1.00001e-5):
        with monkeypatch.context() as patch:
            _convolved(patch, eps)
            records.append(load_record(workshop.train(spec).folder))
    reference, honest, candidate = records[0], _moved(records[1]), _moved(records[2])
    assert compare(reference, honest).verdict == "pass"
    judgement = compare(reference, candidate)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "operator")
    assert judgement.first_divergence.at == "bert.encoder.layer.0.intermediate.intermediate_act_fn.norm"


def test_a_gradient_that_clipping_changes_is_no_fault_of_the_optimizer(
    right: PortableEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = nn.utils.clip_grad_norm_

    def larger(parameters: Any, *given: Any) -> Any:
        parameters[0].grad.mul_(1 + 1e-6)
        return clip(parameters, *given)

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", larger)
    stage, _ = next(window_parts(right.windows[0], _trained().windows[0]))
    assert stage == "clipped"
