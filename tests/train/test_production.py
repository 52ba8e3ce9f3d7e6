"""Windows and checks of `speed`: faults of its formula and kernels are named; other settings are not flagged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from plumbline.data.datasets.publish import publish_weights
from plumbline.judge import compare
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.portable_parts import speed_places
from plumbline.schema.proof import Proof
from plumbline.schema.sketch import marks_of
from plumbline.schema.spec import OptimizerSpec, RunSpec, SpeedSpec
from plumbline.schema.tolerance import is_over
from plumbline.schema.verdict import Judgement
from plumbline.train.context import Context
from plumbline.train.engine import Engine
from plumbline.train.engine_state import Start, shown_rate
from plumbline.train.job import TrainJob, open_run
from plumbline.train.models.dropout import without_dropout
from plumbline.train.numerics import apply_settings, seed_generators
from plumbline.train.optimizers import make_optimizer
from plumbline.train.own_checks import OwnChecks
from plumbline.train.portable.window_digests import ModuleDigests
from plumbline.train.proof.definitions import other_settings
from plumbline.train.proof.steps import Prover
from plumbline.train.proof.update import UpdateCheck
from plumbline.train.ranks import Ranks
from plumbline.train.speed_engine import compile_model, make_engine
from plumbline.train.watch.recorder import Stage, Tensors
from plumbline.train.weights import make_weights
from plumbline.train.windows import WindowRunner, WindowSetting
from tests.train.conftest import Workshop, before_steps
from tests.train.production_faults import FAULTS

SPEED: dict[str, Any] = {"steps": 10, "precision": "bf16"}


@dataclass
class Shop:
    """A whole training, and its context to run windows, checks and one proven step of `speed` alone."""

    trained: LoadedRecord
    context: Context

    def shown(self, opened: SpeedSpec | None = None, **changes: Any) -> SpeedEvidence:
        """Return the training's evidence with windows, checks and proofs of one step at changed settings.

        `opened` are settings of an engine whose modules prove themselves, instead of the engine's own.
        """
        context, spec = self.context, self.trained.record.spec
        speed, places = spec.speed.replace(**changes), speed_places(spec)
        apply_settings(speed.precision, strict=False, part="speed", speed=speed)
        seed_generators(spec.seed)
        batch = next(iter(context.batches(first=0, count=1)))
        engine = make_engine(context, spec, speed, dropout=speed.dropout, steps=10, ranks=context.ranks)
        compile_model(engine, speed)
        start = Start(context.weights, shown_rate(spec.optimizer))
        setting = WindowSetting("speed", start, lambda engine: without_dropout(engine.bare))
        windows, prover = WindowRunner(context, setting, {}), Prover(engine, (0,))
        windows.run(lambda: engine, places[0], batch)
        prover.train(0, batch)
        windows.run(lambda: engine, places[1], batch)
        opened = engine if opened is None else make_engine(context, spec, opened, dropout=0.0, steps=10, ranks=Ranks())
        checks = OwnChecks(context, speed, start, prover.proofs).run(engine, lambda: opened, places[1], batch)
        proofs = tuple(map(Proof.model_validate, prover.proofs))
        return self.trained.record.evidence.speed.replace(portable=windows.evidence(), production=checks, proofs=proofs)

    def record(self, shown: SpeedEvidence, **fingerprint: Any) -> LoadedRecord:
        record = self.trained.record
        evidence = record.evidence.model_copy(update={"speed": shown})
        changed = {"evidence": evidence, "fingerprint": record.fingerprint.replace(**fingerprint)}
        return LoadedRecord(record.model_copy(update=changed), self.trained.folder)


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
        yield Shop(trained, context)


@pytest.fixture(scope="module")
def honest_alone(padded: Workshop) -> LoadedRecord:
    """Return a training of `speed` alone."""
    return load_record(padded.train(_spec(padded).replace(probe=None)).folder)


@pytest.fixture(scope="module")
def honest(shop: Shop) -> LoadedRecord:
    """Return a record with what an honest engine shows of its settings."""
    return shop.record(shop.shown())


def judged(left: LoadedRecord, right: LoadedRecord) -> Judgement:
    return compare(left, right, throughput=False)


def test_an_honest_training_repeats_itself_and_is_the_plain_model(shop: Shop) -> None:
    speed = shop.trained.record.evidence.speed
    assert (speed.portable.lost, speed.production.lost) == ("", "")
    assert [window.step for window in speed.portable.windows] == list(speed_places(shop.trained.record.spec))
    assert speed.production.repeated
    stages = [name.split()[0] for name, _ in speed.production.formula]
    assert list(dict.fromkeys(stages)) == ["forward", "loss", "gradient"]
    assert max(error for _, error in speed.production.formula) < 1e-12


def test_a_second_honest_training_passes_on_a_different_machine(shop: Shop, honest_alone: LoadedRecord) -> None:
    isa = shop.trained.record.fingerprint.cpu.replace(isa="another")
    judgement = judged(shop.trained, shop.record(honest_alone.record.evidence.speed, cpu=isa))
    assert judgement.verdict == "pass"
    assert {"speed.portable", "production.equality"} <= {finding.check for finding in judgement.findings}


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_windows_and_checks_leave_a_training_as_it_was(padded: Workshop, precision: str) -> None:
    """With dropout and micro-batches: loss scale, generators, moments and rates are the training's again."""
    spec = _spec(padded, precision=precision).replace(probe=None, optimizer={"accumulation_steps": 2})
    logs = []
    for asked in (True, False):
        speed = spec.speed.replace(checks=asked)
        logs.append(padded.train(spec.replace(speed=speed)).record.evidence.speed)
    shared = min(len(log.losses) for log in logs)
    for name in ("losses", "gradient_norms", "learning_rates", "clipped_norms"):
        assert len({getattr(log, name)[:shared] for log in logs}) == 1, name
    assert len({log.weights[:17] for log in logs}) == 1
    assert len({tuple((name, states[:17]) for name, states in log.generators.items()) for log in logs}) == 1


@pytest.mark.parametrize(("scaler", "found"), [(None, "head"), (torch.amp.GradScaler("cpu"), None)])
def test_gradients_of_a_step_that_loss_scaling_skips_need_not_repeat(
    monkeypatch: pytest.MonkeyPatch, scaler: torch.amp.GradScaler | None, found: str | None
) -> None:
    """Sums that overflow in fp16 are infinite or NaN by the order of their parts, and NaN is equal to nothing."""
    steps = (
        SimpleNamespace(
            loss_value=0.5,
            kept={"forward": {"logits": torch.ones(2)}, "gradient": {"head": torch.tensor([value, 1.0])}},
        )
        for value in (float("inf"), float("nan"))
    )
    checks = OwnChecks(*[SimpleNamespace(ranks=SimpleNamespace(device=None))] * 3, [])  # type: ignore[arg-type]
    monkeypatch.setattr(checks, "_compiled", lambda _: None)
    monkeypatch.setattr(checks, "_trained", lambda *_, **__: next(steps))
    assert checks._first_different(SimpleNamespace(scaler=scaler), {}) == found  # type: ignore[arg-type]


@pytest.mark.long
def test_the_log_is_that_of_the_probe_and_of_a_second_run(shop: Shop, padded: Workshop) -> None:
    log = shop.trained.record.evidence.speed
    expected = marks_of(dict(shop.trained.batches))
    assert all(list(log.batches[name][:3]) == marks for name, marks in expected.items())
    again = padded.train(_spec(padded)).record.evidence.speed
    shared = min(len(again.losses), len(log.losses))
    assert again.losses[:shared] == log.losses[:shared]
    assert dict(again.weights)[16] == dict(log.weights)[16]


def _one_mask(patch: pytest.MonkeyPatch) -> None:
    drop = functional.dropout

    def dropped(value: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return value * drop(torch.ones_like(value[:1]), p, training, inplace)

    patch.setattr(functional, "dropout", dropped)


def _set_back(patch: pytest.MonkeyPatch) -> None:
    before_steps(patch, lambda *_: torch.manual_seed(3))


def _attends(change: Any) -> Any:
    """Return a plant that changes the mask of attention where it drops elements."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]

        def attended(module: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
            if named.get("dropout"):
                seen = change(torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool))
                mask = seen if mask is None else mask & seen
            return attend(module, query, key, value, mask, **named)

        patch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", attended)

    return plant


def _half(seen: torch.Tensor) -> torch.Tensor:
    seen[:, len(seen) // 2 :] = False
    return seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("plant", "code"),
    [(_one_mask, "rng"), (_set_back, "rng"), (_attends(torch.tril), "operator"), (_attends(_half), "operator")],
    ids=["one mask for all rows", "generator set back", "causal attention", "attention to a half"],
)
def test_a_fault_that_comes_with_dropout_alone_shows_behind_other_kernels(
    padded: Workshop, honest_alone: LoadedRecord, monkeypatch: pytest.MonkeyPatch, plant: Any, code: str
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        found = load_record(padded.train(honest_alone.record.spec).folder)
    fingerprint = found.record.fingerprint
    first, *others = fingerprint.operations["speed"]
    operations = {"speed": (first.replace(sha256="f" * 16), *others)}
    rounds = fingerprint.replace(cpu=fingerprint.cpu.replace(isa="another"), operations=operations)
    other = found.record.replace(fingerprint=rounds)
    judgement = judged(honest_alone, LoadedRecord(other, found.folder))
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", [code])


_SAMPLE = (
    "sdpa-ignores-padding", "sdpa-backward-halved", "fused-without-decay", "relu-for-gelu", "linear-in-three-bits",
    "clipped-at-four-times-the-norm", "loss-smoothed",
)  # fmt: skip
"""Faults of which each has a different cause or place; `make test-all` plants all."""
_ROWS = "every-second-row-skipped"
"""A fault of the batches, which the log of a whole training shows."""


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "name",
    [name if name in _SAMPLE else pytest.param(name, marks=pytest.mark.long) for name in FAULTS if name != _ROWS],
)
def test_a_fault_of_production_kernels_is_named_on_any_machine_and_without_a_reference(
    shop: Shop, honest: LoadedRecord, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plant, code, place = FAULTS[name]
    with monkeypatch.context() as patch:
        plant(patch)
        shown = shop.shown()
    other = shop.record(shown, cpu=shop.trained.record.fingerprint.cpu.replace(isa="another"))
    wrong = shop.record(shown)
    for reference, candidate in ((honest, wrong), (honest, other), (wrong, wrong)):
        judgement = judged(reference, candidate)
        assert judgement.verdict == "drift"
        assert judgement.causes[0].code == code
        assert reference is candidate or place in judgement.first_divergence.at


@pytest.mark.first(1)
@pytest.mark.parametrize("changes", [
    {"attention": "eager"}, {"precision": "fp16"}, {"precision": "fp32", "attention": "eager"}, {"optimizer": "sgd"},
    {"gradient_checkpointing": True, "optimizer": "adafactor", "fused_optimizer": False},
    {"padding": "longest", "fused_optimizer": False, "foreach_optimizer": True},
])  # fmt: skip
def test_other_settings_are_the_plain_model_too(shop: Shop, changes: dict[str, Any]) -> None:
    shown = shop.shown(**changes)
    assert (shown.portable.lost, shown.production.lost) == ("", "")
    assert max(error for _, error in shown.production.formula) < 1e-12
    assert all(not is_over(error) for proof in shown.proofs for error in proof.errors)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_model_is_measured_beside_the_same_without_its_compiler(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend of this test runs the graphs as they are: a wrong one computes GELU as a ReLU."""

    def shown(change: Any) -> LoadedRecord:
        def backend(graph: Any, _inputs: Any) -> Any:
            for node in graph.graph.nodes:
                change(node)
            graph.recompile()
            return graph.forward

        plain = torch.compile
        with monkeypatch.context() as patch:
            patch.setattr(torch, "compile", lambda model, **_: plain(model, backend=backend))
            found = shop.shown(compile=True)
        torch.compiler.reset()
        return shop.record(found)

    def relu(node: Any) -> None:
        if getattr(node.target, "__name__", "") == "gelu":
            node.target, node.kwargs = torch.relu, {}

    def smoothed(node: Any) -> None:
        if getattr(node.target, "__name__", "") == "cross_entropy":
            node.args = (*node.args[:-1], 0.01)

    clean, wrong, loss = shown(lambda _: None), shown(relu), shown(smoothed)
    assert judged(clean, clean).verdict == "pass"
    kernels = clean.record.evidence.speed.production.kernels
    assert {each.stage for each in kernels} == {"forward", "gradient"}
    for reference in (clean, wrong):
        judgement = judged(reference, wrong)
        assert (judgement.verdict, judgement.causes[0].code) == ("drift", "operator")
    # The step that proves itself compares the compiled loss with its definition.
    judgement = judged(loss, loss)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "loss"), judgement.causes


def test_a_parameter_without_a_gradient_needs_no_reference(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plain = "bert.pooler.dense.bias", make_engine

    def frozen(*given: Any, **named: Any) -> Engine:
        engine = plain(*given, **named)
        engine.bare.get_parameter(name).requires_grad_(False)
        return engine

    monkeypatch.setitem(globals(), "make_engine", frozen)
    wrong = shop.record(shop.shown())
    judgement = judged(wrong, wrong)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "gradient")
    assert judgement.first_divergence.at == name


@pytest.mark.first(1)
@pytest.mark.parametrize("error", [MemoryError("no memory"), TypeError("no such operation")])
def test_checks_that_fail_in_fp64_are_lost_and_leave_the_model_as_it_was(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    models, plain = list[torch.nn.Module](), Engine._backward

    def backward(self: Engine, *given: Any) -> None:
        models.append(self.bare)
        if next(self.bare.parameters()).dtype == torch.float64:
            raise error
        plain(self, *given)

    monkeypatch.setattr(Engine, "_backward", backward)
    production = shop.shown().production
    assert str(error) in production.lost
    assert not production.formula
    assert not any(module._forward_hooks for model in models for module in model.modules())
    assert {value.dtype for value in models[0].parameters()} == {torch.float32}


def test_a_window_that_lacks_memory_leaves_the_loss_scale_as_it_was(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after its gradients were divided by the scale, and before the scale was updated."""

    plain = ModuleDigests.keep

    def full(self: ModuleDigests, stage: Stage, tensors: Tensors) -> Any:
        if stage == "clipped":
            raise MemoryError("no memory")
        return plain(self, stage, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(ModuleDigests, "keep", full)
        shown = shop.shown(precision="fp16")
    assert "no memory" in shown.portable.lost
    assert shown.production.lost == ""
    assert all(not is_over(error) for proof in shown.proofs for error in proof.errors)


@pytest.mark.long
def test_a_kernel_that_no_proof_opens_is_measured_beside_modules_that_prove_themselves(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As flash-attn, which computes in half precision alone: here the heads of bf16 are exchanged."""
    eager = shop.trained.record.spec.speed.replace(attention="eager")
    native = torch.nn.functional.scaled_dot_product_attention

    def exchanged(query: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        output = native(query, *given, **named)
        return output.flip(1) if query.dtype == torch.bfloat16 else output

    clean = shop.record(shop.shown(eager))
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", exchanged)
        wrong = shop.record(shop.shown(eager))
    unopened = Proof(step=0, errors=(), tensors=0, lost="no module is open")
    for found, verdict in ((clean, "pass"), (wrong, "drift")):
        windows = clean.record.evidence.speed.portable
        own = found.record.evidence.speed.replace(portable=windows, proofs=(unopened,))
        assert judged(shop.record(own), shop.record(own)).verdict == verdict


@pytest.mark.long
def test_a_whole_training_that_skips_rows_or_padding_drifts(
    shop: Shop, padded: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a real training, loaded and compared as the command does."""
    with monkeypatch.context() as patch:
        FAULTS[_ROWS][0](patch)
        skipping = load_record(padded.train(_spec(padded)).folder)
    judgement = judged(shop.trained, skipping)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "data.order")
    with monkeypatch.context() as patch:
        FAULTS["sdpa-ignores-padding"][0](patch)
        unmasked = load_record(padded.train(_spec(padded)).folder)
    judgement = judged(shop.trained, unmasked)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "operator")
    assert judgement.first_divergence.at.startswith("bert.encoder.layer.0.attention")


def _updated(kind: str, steps: int = 3, of_others: Any = None, **settings: Any) -> tuple[float, Any, Any]:
    """Return the largest error of a few updates, with their model and optimizer; `of_others` updates instead."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 3))
    optimizer = make_optimizer(model, OptimizerSpec(weight_decay=0.1), fused=kind != "adafactor", kind=kind)
    for group in optimizer.param_groups:
        group.update(settings)
    optimizer.param_groups[1]["lr"] *= 0.5  # the schedule differs, the optimizer is right
    check, worst = UpdateCheck(model, optimizer), 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 7)).square().sum().backward()
        check.before()
        (of_others or (lambda optimizer: optimizer.step()))(optimizer)
        errors = check.errors([group["lr"] for group in optimizer.param_groups])
        worst = max(worst, *(float(error) for _, error in errors), 0.0)
    return worst, model, optimizer


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"momentum": 0.8}), ("adafactor", {"d": 2.0}), ("adafactor", {"beta2_decay": -0.7}),
    ("adamw", {"eps": 1e-4}), ("adamw", {"betas": (0.8, 0.999)}), ("adamw", {"weight_decay": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings"), OTHERS)
def test_an_update_is_compared_with_its_own_groups_and_its_groups_with_the_spec(
    kind: str, settings: dict[str, Any]
) -> None:
    """An honest optimizer of other settings computes rightly: that they are not the spec's is exact."""
    for given in ({}, settings):
        worst, model, optimizer = _updated(kind, **given)
        assert worst <= 1.0
        assert bool(list(other_settings(model, optimizer, OptimizerSpec(weight_decay=0.1)))) is bool(given)

    def wrong(optimizer: Any) -> None:
        plain = [dict(group) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group.update(settings)
        optimizer.step()
        for group, own in zip(optimizer.param_groups, plain, strict=True):
            group.update(own)

    assert _updated(kind, of_others=wrong)[0] > 1.0


@pytest.mark.parametrize(("kind", "settings"), [("sgd", {"nesterov": True}), ("adamw", {"amsgrad": True})])
def test_an_update_without_a_definition_is_lost_and_accuses_nobody(kind: str, settings: dict[str, Any]) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = make_optimizer(model, OptimizerSpec(), fused=False, kind=kind)
    assert not UpdateCheck(model, optimizer).lost
    optimizer.param_groups[0].update(settings)
    assert next(iter(settings)) in UpdateCheck(model, optimizer).lost
    assert "Rprop" in UpdateCheck(model, torch.optim.Rprop(model.parameters())).lost
    assert not list(UpdateCheck(model, torch.optim.Rprop(model.parameters())).errors([]))


@pytest.mark.parametrize(
    ("kind", "moment"), [("sgd", "momentum_buffer"), ("adamw", "exp_avg"), ("adamw", "exp_avg_sq")]
)
def test_moments_that_an_update_leaves_are_compared_with_their_definition(kind: str, moment: str) -> None:
    """As of an optimizer that keeps its state in eight bits: the next update is right by what it finds."""
    spec = OptimizerSpec(weight_decay=0.1)
    for is_short in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Linear(7, 40)
        optimizer = make_optimizer(model, spec, fused=False, kind=kind)
        check = UpdateCheck(model, optimizer)
        worst = 0.0
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 7)).square().sum().backward()
            check.before()
            optimizer.step()
            for state in optimizer.state.values() if is_short else ():
                state[moment].copy_(state[moment].bfloat16())
            errors = check.errors([group["lr"] for group in optimizer.param_groups])
            worst = max(worst, *(float(error) for _, error in errors))
        assert (worst > 1.0) is is_short, worst
