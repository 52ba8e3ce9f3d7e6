"""Portable arithmetic: order- and kernel-independent results, without native calls."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.models.bert import modeling_bert

from plumbline.judge.rungs.portable import reordered
from plumbline.schema.evidence import PortableEvidence
from plumbline.schema.expected import Expected
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.train.failure import TrainingFailedError
from plumbline.train.model import build_model, load_weights
from plumbline.train.portable import functions, leg
from plumbline.train.portable.arithmetic import portable_arithmetic
from plumbline.train.portable.compositions import COMPOSITIONS
from plumbline.train.portable.fixed_point import summed_as_integers
from plumbline.train.portable.golden import first_difference
from plumbline.train.portable.leg import PortableLeg
from plumbline.train.portable.operations import BY_CONSTRUCTION, FORMS, PRODUCTS, UnportableOperationError
from plumbline.train.portable.products import check_products, exact_product
from plumbline.train.portable.scalars import PortableFloat
from plumbline.train.portable.sums import tree_sum
from plumbline.train.ranks import Ranks
from plumbline.train.selfcheck import _Drawn, _weights, first_step, shipped_spec
from tests.train.conftest import Workshop

CPU = torch.device("cpu")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "PORTABLE.md"


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("inner", [1, 7, 768, 3072])
def test_a_product_has_one_result_in_any_order_and_any_library(slices: int, inner: int) -> None:
    left, right = normal(24, inner), normal(inner, 40, seed=1)
    right[:, 3] *= 1e-30
    result = exact_product(left, right, slices)
    for seed in range(8):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(inner))
        assert torch.equal(exact_product(left[:, order], right[order], slices), result)
    numpys = torch.matmul
    try:  # NumPy's library is OpenBLAS, torch's is not
        torch.matmul = lambda a, b: torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
        assert torch.equal(exact_product(left, right, slices), result)
    finally:
        torch.matmul = numpys
    limit = {1: 5e-7 * 8, 2: 1e-11, 3: 1e-15}[slices]
    error = (result - left @ right).abs() / (left.abs() @ right.abs())
    assert error.max() < limit


def test_plain_fp64_products_depend_on_the_order() -> None:
    """What the grid is for: without it the test above would hold by chance alone."""
    left, right = normal(24, 768), normal(768, 40, seed=1)
    order = torch.from_numpy(np.random.default_rng(0).permutation(768))
    assert not torch.equal(left[:, order] @ right[order], left @ right)


def test_extreme_rows_stay_finite_and_zeros_stay_zero() -> None:
    left, right = torch.zeros(3, 4, dtype=torch.float64), normal(4, 5)
    left[1], left[2] = 1e-308, 1e300
    result = exact_product(left, right, 2)
    assert torch.isfinite(result).all()
    assert (result[0] == 0).all()
    assert torch.allclose(result[2], left[2] @ right, rtol=1e-9)


def test_a_device_whose_fp64_products_are_emulated_from_fewer_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_products(CPU)
    product = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: product(a.float(), b.float()).double())
    with pytest.raises(TrainingFailedError, match="not exact"):
        check_products(CPU)


@pytest.mark.parametrize(
    ("name", "values", "limit"),
    [
        ("exp", torch.linspace(-700, 700, 40_001, dtype=torch.float64), 4e-16),
        ("log", torch.logspace(-300, 300, 40_000, dtype=torch.float64), 4e-16),
        ("erf", torch.linspace(-7, 7, 40_000, dtype=torch.float64), 2e-14),
        ("sigmoid", torch.linspace(-30, 30, 40_001, dtype=torch.float64), 5e-16),
        ("tanh", torch.cat([-torch.logspace(-2, 1, 999), torch.logspace(-2, 1, 999)]).double(), 3e-14),
    ],
)
def test_functions_agree_with_the_library(name: str, values: torch.Tensor, limit: float) -> None:
    result, right = getattr(functions, name)(values), getattr(torch, name)(values)
    assert ((result - right).abs() / right.abs()).max() < limit


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_angles_agree_with_the_library(name: str) -> None:
    values = torch.cat([torch.linspace(-9, 9, 20_001), torch.linspace(0, 8192, 20_001), torch.tensor([9.9e5])]).double()
    result, right = getattr(functions, name)(values), getattr(torch, name)(values)
    assert (result - right).abs().max() < 3e-16


@pytest.mark.parametrize(
    ("name", "values", "right"),
    [
        ("exp", [-math.inf, -1.7e308, 0.0, 800.0, math.inf, math.nan], [0.0, 0.0, 1.0, math.inf, math.inf, math.nan]),
        ("log", [0.0, 1.0, math.inf, -1.0, math.nan], [-math.inf, 0.0, math.inf, math.nan, math.nan]),
        ("erf", [-math.inf, 0.0, math.inf, math.nan], [-1.0, 0.0, 1.0, math.nan]),
        ("tanh", [-math.inf, 0.0, math.inf, math.nan], [-1.0, 0.0, 1.0, math.nan]),
        ("cos", [-math.inf, 0.0, 2e6, math.nan], [math.nan, 1.0, math.nan, math.nan]),
        ("sin", [-math.inf, 0.0, 2e6, math.nan], [math.nan, 0.0, math.nan, math.nan]),
    ],
)
def test_functions_at_their_ends(name: str, values: list[float], right: list[float]) -> None:
    result = getattr(functions, name)(torch.tensor(values, dtype=torch.float64)).tolist()
    assert result == pytest.approx(right, nan_ok=True, abs=0)


def test_each_ieee_operation_is_rounded_as_ieee_says() -> None:
    """Python's floats are the reference: torch's own square root comes from a vector library, and differs."""
    spread = 10.0 ** torch.from_numpy(np.random.default_rng(2).integers(-5, 5, 20_000)).double()
    left, right = normal(20_000).abs() * spread, normal(20_000, seed=1) * spread
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    with portable_arithmetic(2):
        result = {"mul": left * right, "add": left + right, "sub": left - right, "div": left / right,
                 "sqrt": left.sqrt(), "half power": left**0.5, "rsqrt": left.rsqrt()}  # fmt: skip
    expected: dict[str, Callable[[float, float], float]] = {
        "mul": lambda a, b: a * b, "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "div": lambda a, b: a / b,
        "sqrt": lambda a, _: math.sqrt(a), "half power": lambda a, _: math.sqrt(a),
        "rsqrt": lambda a, _: 1 / math.sqrt(a),
    }  # fmt: skip
    for name, operation in expected.items():
        wrong = sum(value != operation(*pair) for value, pair in zip(result[name].tolist(), pairs, strict=True))
        assert wrong == 0, f"{name}: {wrong} of {len(pairs)} values"
    with portable_arithmetic(2):
        ends = torch.tensor([0.0, math.inf, -1.0, math.nan], dtype=torch.float64).sqrt()
    assert ends[:2].tolist() == [0.0, math.inf]
    assert ends[2:].isnan().all()


def test_sums_follow_the_shape_and_not_the_layout() -> None:
    values = normal(5, 13, 7) * torch.logspace(-8, 8, 7, dtype=torch.float64)
    assert torch.equal(tree_sum(values, [1]), tree_sum(values.transpose(0, 1).contiguous().transpose(0, 1), [1]))
    assert tree_sum(values, [0, 2], keepdim=True).shape == (1, 13, 1)
    assert torch.allclose(tree_sum(values, None), values.sum())
    assert tree_sum(values[:0], [0]).shape == (13, 7)


def test_a_choice_along_the_last_axis_has_its_gradient() -> None:
    """Its backward pass is an `index_put` whose first indices are `None`."""
    values = normal(3, 4, 5).double().requires_grad_()
    order = torch.tensor([4, 0, 0, 2])
    with portable_arithmetic(2):
        (values[..., order] * normal(3, 4, 4).double()).sum().backward()
    wanted = values.detach().clone().requires_grad_()
    (wanted[..., order] * normal(3, 4, 4).double()).sum().backward()
    assert values.grad is not None
    assert wanted.grad is not None
    assert torch.allclose(values.grad, wanted.grad, rtol=1e-12)


def test_scattered_sums_do_not_depend_on_the_order_of_rows() -> None:
    values = normal(1000, 3) * 1e-5
    places = torch.from_numpy(np.random.default_rng(1).integers(0, 4, 1000))
    order = torch.from_numpy(np.random.default_rng(2).permutation(1000))

    def scattered(index: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda whole: whole.new_zeros((4, 3)).index_add(0, index, whole)

    result = summed_as_integers(values, 1000, scattered(places))
    assert torch.equal(summed_as_integers(values[order], 1000, scattered(places[order])), result)
    assert torch.allclose(result, torch.zeros(4, 3, dtype=torch.float64).index_add(0, places, values), rtol=1e-12)


def test_powers_on_the_host_are_running_products() -> None:
    beta = PortableFloat(0.999)
    product = 1.0
    for _ in range(7):
        product *= 0.999
    assert float(beta**7.0) == product
    assert float((1 - beta**7) ** 0.5) == math.sqrt(1 - product)
    with pytest.raises(ValueError, match="no portable form"):
        _ = beta**0.3


@pytest.mark.parametrize(
    "call",
    [
        torch.sinh, lambda x: torch.cumprod(x, 0), lambda x: functional.dropout(x, 0.1),
        lambda x: torch.randn_like(x) + x, lambda x: torch.bernoulli(x.abs().clamp(max=1)),
        lambda x: x + torch.rand(3, dtype=torch.float64), lambda x: x**0.3, lambda x: torch.softmax(x, 0).prod(),
    ],
)  # fmt: skip
def test_an_operation_without_a_portable_form_is_an_error_that_names_it(call: Callable[[torch.Tensor], Any]) -> None:
    with portable_arithmetic(2), pytest.raises(UnportableOperationError) as caught:
        call(normal(3))
    assert "has no portable form" in str(caught.value)
    assert caught.value.operation.startswith(("aten.", "torch."))


def test_a_state_that_is_copied_or_loaded_computes_nothing() -> None:
    """A resume restores the optimizer's state: storages are read, and given to new tensors."""
    state = {"exp_avg": normal(5, 3), "step": torch.tensor(3.0), "rows": torch.arange(4)[1:]}
    saved = io.BytesIO()
    with portable_arithmetic(2):
        torch.save(state, saved)
        saved.seek(0)
        for found in (copy.deepcopy(state), torch.load(saved, weights_only=True)):
            assert all(torch.equal(found[name], value) for name, value in state.items())


def _spelt_out(values: torch.Tensor, layer: nn.LayerNorm) -> torch.Tensor:
    centred = values - values.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + layer.eps)
    normed = scaled * layer.weight + layer.bias
    raised = (normed - normed.amax(-1, keepdim=True)).exp()
    share = raised / raised.sum(-1, keepdim=True)
    return share * (0.5 + 0.5 * torch.erf(share * 0.7071067811865476))


def test_a_formula_spelt_out_in_small_operations_gives_the_same_bits() -> None:
    layer = nn.LayerNorm(12).double()
    results = []
    for compute in (lambda x: functional.gelu(functional.softmax(layer(x), dim=-1)), lambda x: _spelt_out(x, layer)):
        values = normal(6, 12).requires_grad_()
        layer.zero_grad()
        with portable_arithmetic(2):
            output = compute(values)
            (output * normal(6, 12, seed=3)).sum().backward()
        results.append([output.detach(), values.grad, layer.weight.grad, layer.bias.grad])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def _leg(task: Any = "sequence-classification", attention: Any = "eager", **changes: Any) -> PortableEvidence:
    spec = shipped_spec(task, attention)
    weights = changes.pop("weights", None) or _weights(spec)
    spec = spec.replace(**changes)
    trained = PortableLeg(_Drawn(spec, Ranks(), weights), ProbeSpec.model_validate(spec.probe))
    trained.run()
    assert trained.evidence is not None
    assert trained.evidence.unportable == ""
    return trained.evidence


@pytest.fixture(scope="module")
def right() -> PortableEvidence:
    return _leg()


@pytest.mark.parametrize("task", ["sequence-classification", "masked-lm"])
def test_eager_and_fused_attention_train_the_same_bits(task: Any) -> None:
    assert _leg(task) == _leg(task, "sdpa")


@pytest.mark.parametrize("isa", ["default", "avx2"])
def test_every_instruction_set_passes_the_shipped_digests(isa: str) -> None:
    environment = os.environ | {
        "ATEN_CPU_CAPABILITY": isa,
        "OMP_NUM_THREADS": "2",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    command = [sys.executable, "-m", "plumbline", "selfcheck", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "pass"


def _built(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    def loaded(model: Any, weights: Any) -> None:
        load_weights(model, weights)
        change(model)

    monkeypatch.setattr(leg, "load_weights", loaded)


def _checkpointed(model: Any) -> None:
    model.activation_checkpointing_enable()


@pytest.mark.parametrize("task", ["sequence-classification", "masked-lm"])
def test_modules_called_again_in_the_backward_pass_train_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, task: Any
) -> None:
    plain = _leg(task)
    _built(monkeypatch, _checkpointed)
    checkpointed = _leg(task)
    for ours, theirs in zip(plain.steps, checkpointed.steps, strict=True):
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
def test_the_smallest_change_of_a_formula_changes_the_bits_at_its_module(
    right: PortableEvidence, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], place: str
) -> None:
    _built(monkeypatch, change)
    changed = _leg()
    assert first_difference(right.steps, changed.steps) == place
    assert reordered(_pair(right, changed)) is None


def _pair(left: PortableEvidence, right: PortableEvidence) -> Any:
    return SimpleNamespace(probes=tuple(SimpleNamespace(portable=leg) for leg in (left, right)))


def test_a_product_in_two_halves_is_another_order_of_operations(
    right: PortableEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = functional.linear

    def in_halves(x: torch.Tensor, w: torch.Tensor, b: Any = None) -> torch.Tensor:
        half = x.shape[-1] // 2
        return linear(x[..., :half], w[..., :half], b) + linear(x[..., half:], w[..., half:])

    monkeypatch.setattr(functional, "linear", in_halves)
    changed = _leg()
    assert first_difference(right.steps, changed.steps).startswith("outputs of step 0")
    result = reordered(_pair(right, changed))
    assert result is not None
    assert result[1] < 1e-13


def test_another_order_that_only_a_later_step_shows_is_recognised(
    right: PortableEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of three shipped embeddings is exact in fp64, so its order shows after the first update."""

    def forward(self: Any, input_ids: Any = None, token_type_ids: Any = None, **_rest: Any) -> torch.Tensor:
        places = self.position_ids[:, : input_ids.shape[1]]
        added = self.position_embeddings(places) + self.token_type_embeddings(token_type_ids)
        result: torch.Tensor = self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + added))
        return result

    monkeypatch.setattr(modeling_bert.BertEmbeddings, "forward", forward)
    changed = _leg()
    result = reordered(_pair(right, changed))
    assert result is not None
    assert "of step 1" in result[0]
    assert result[1] < 1e-14


def test_one_unit_in_the_last_place_of_one_weight_changes_the_bits(right: PortableEvidence) -> None:
    weights = _weights(shipped_spec("sequence-classification"))
    name = "bert.encoder.layer.1.output.dense.weight"
    weights[name].view(-1)[5] = torch.nextafter(weights[name].view(-1)[5], torch.tensor(1.0))
    assert "layer.1" in first_difference(right.steps, _leg(weights=weights).steps)


@pytest.mark.parametrize(
    "change",
    [{"eps": 1.01e-8}, {"betas": (0.9, 0.99900001)}, {"weight_decay": 0.0100001}, {"learning_rate": 5.0000001e-4}],
)
def test_a_slightly_different_update_changes_the_weights(right: PortableEvidence, change: dict[str, Any]) -> None:
    optimizer = shipped_spec("sequence-classification").optimizer.replace(**change)
    assert first_difference(right.steps, _leg(optimizer=optimizer).steps).startswith("weights of step 0")


def test_a_device_that_computes_wrongly_disagrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped bit in one product of the second training."""
    calls = [0]
    form = FORMS["tanh"]

    def flipped(values: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        result = form(values)
        if calls[0] == 7:  # the repetition of the first step: two micro-batches in each of three steps come before
            result.view(torch.int64).view(-1)[0] ^= 1 << 30
        return result

    monkeypatch.setitem(FORMS, "tanh", flipped)
    assert not _leg().repeated


def test_a_leg_that_meets_an_unportable_operation_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(spec: RunSpec, **given: Any) -> Any:
        model = build_model(spec, **given)
        model.bert.pooler.activation.forward = torch.sinh
        return model

    monkeypatch.setattr(leg, "build_model", build)
    spec = shipped_spec("sequence-classification")
    trained = PortableLeg(_Drawn(spec, Ranks(), _weights(spec)), ProbeSpec.model_validate(spec.probe))
    trained.run()
    assert trained.evidence is not None
    assert trained.evidence.unportable == "aten.sinh.default"
    assert trained.exact_steps == 0


def test_the_catalogue_in_the_documents_is_that_of_the_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    listed = {
        title: set(line.replace("`", "").replace(",", " ").split())
        for title, line in (row.strip("|").split("|")[:2] for row in text.splitlines() if row.startswith("| "))
        for title in [title.strip()]
    }
    for group, names in BY_CONSTRUCTION.items():
        assert listed[group] == set(names)
    assert listed["matrix products"] == set(PRODUCTS)
    assert listed["our form"] == set(FORMS)
    assert listed["compositions"] == set(COMPOSITIONS)


def test_two_processes_and_one_train_the_same_bits(right: PortableEvidence) -> None:
    """Each of two trains the whole batch; one that disagrees is a device that computes wrongly."""
    spec = shipped_spec("sequence-classification")

    class Two(Ranks):
        def gather(self, value: Any) -> list[Any]:
            return [value, value if self.rank == 0 else "other"]

        def anyone(self, flag: bool) -> bool:
            return flag

    for rank, repeated in ((0, True), (1, False)):
        trained = PortableLeg(_Drawn(spec, Two(rank, 2), _weights(spec)), ProbeSpec.model_validate(spec.probe))
        trained.run()
        assert trained.evidence is not None
        assert trained.evidence.steps == right.steps
        assert trained.evidence.repeated is repeated


@pytest.mark.parametrize("fault", [False, True])
def test_a_training_that_a_round_ordered_checks_its_machine_first(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    """A training without such an order pays nothing for it."""
    if fault:
        monkeypatch.setattr(functional, "softmax", lambda *args, **kwargs: torch.softmax(*args, **kwargs) * (1 + 1e-7))
    spec = workshop.spec(probe={"steps": 1, "evaluation_rows": 8, "envelope_seeds": 0, "portable_steps": 1})
    check = workshop.train(spec, expected=Expected(accelerator="cpu")).record.evidence.selfcheck
    assert check is not None
    expected = ("drift", "outputs of step 0: bert.encoder.layer.0.attention.self") if fault else ("pass", "")
    assert (check.verdict, check.at) == expected
    assert workshop.train(spec).record.evidence.selfcheck is None


def test_versions_that_the_release_does_not_know_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.train.selfcheck.transformers.__version__", "99.0")
    assert first_step(torch.device("cpu"), "masked-lm").verdict == "unknown"


@pytest.mark.parametrize("slices", [1, 2])
def test_a_gradient_of_pure_rounding_is_known_at_any_precision_of_the_leg(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    """A perturbation that changes nothing stands for perturbations that are close together by chance."""
    monkeypatch.setattr("plumbline.train.envelope.perturbed", lambda weights, _seed: weights)
    leg = {"portable_steps": 1, "portable_slices": slices}
    spec = workshop.spec(probe={"steps": 1, "evaluation_rows": 8, "envelope_seeds": 1, **leg})
    probe = workshop.train(spec).record.evidence.probe
    assert probe is not None
    assert probe.envelope is not None
    found = {
        tap.name
        for tap, error in zip(probe.taps, probe.envelope.errors, strict=True)
        if error is not None and error >= 1
    }
    names = {tap.name for tap in probe.taps if tap.name.endswith("attention.self.key.bias")}
    assert names
    assert found == names
    assert any(error is not None for error in probe.envelope.fp64_errors) == (slices == 2)
