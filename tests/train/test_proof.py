"""Proofs of native steps: honest kernels stay far within their limits, wrong ones show at their step and tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from plumbline.schema.proof import Proof
from plumbline.schema.spec import DataSpec, ModelSpec, Precision, RunSpec, SpeedSpec
from plumbline.schema.tolerance import is_off, is_over, proof_limit, sum_limit
from plumbline.train.batches import Batch
from plumbline.train.engine import Engine, Observer
from plumbline.train.models.model import build_model
from plumbline.train.proof.calls import Repetitions
from plumbline.train.proof.distance import error_of, moved_size
from plumbline.train.proof.repeated import NUMBER_TRIALS, Repeated
from plumbline.train.proof.steps import Prover
from plumbline.train.ranks import Ranks
from plumbline.train.speed_engine import compile_model

ROWS, LENGTH, VOCABULARY = 8, 24, 200
PLAIN = functional.linear, functional.layer_norm, functional.scaled_dot_product_attention
LINEAR = "bert.encoder.layer.0.intermediate.dense"


@dataclass
class Setting:
    precision: Precision = "fp32"
    attention: str = "sdpa"
    dropout: float = 0.0
    optimizer: str = "adamw"
    accumulation: int = 1
    task: str = "sequence-classification"
    hidden_act: str = "gelu"
    steps: Collection[int] = field(default=(0, 2))
    vocabulary: int = VOCABULARY

    def spec(self) -> RunSpec:
        is_labelled = self.task == "sequence-classification"
        model = ModelSpec(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=32, vocab_size=self.vocabulary, num_labels=2 if is_labelled else None,
            hidden_act=self.hidden_act, weights_key="w", weights_sha256="0" * 64,
        )  # fmt: skip
        data = DataSpec(name="d", manifest_sha256="0" * 64, sequence_length=LENGTH)
        return RunSpec(
            workload="w", task=self.task, model=model, data=data, seed=1, batch_size=ROWS, speed={"steps": 10},
            optimizer={"accumulation_steps": self.accumulation, "max_grad_norm": 0.05},
        )  # fmt: skip

    def batch(self) -> Batch:
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=generator)
        mask = (torch.arange(LENGTH) < torch.randint(8, LENGTH + 1, (ROWS, 1), generator=generator)).long()
        labels = torch.randint(0, 2, (ROWS,), generator=generator)
        if self.task != "sequence-classification":
            labels = torch.where(torch.rand(ids.shape, generator=generator) < 0.2, ids, -100)
        return {"row_ids": torch.arange(ROWS), "input_ids": ids * mask, "attention_mask": mask,
                "token_type_ids": torch.zeros_like(ids), "labels": labels}  # fmt: skip

    def train(self, observer: Observer | None = None, before: Callable[[int, Engine], None] = lambda *_: None,
              *, is_proven: bool = True) -> tuple[list[Proof], torch.Tensor]:  # fmt: skip
        """Train three steps; return the proofs, and all weights."""
        torch.manual_seed(0)
        model = build_model(self.spec(), attention=self.attention, dropout=self.dropout, device=torch.device("cpu"))
        engine = Engine(
            self.spec(), model.train(), Ranks(), steps=8, precision=self.precision, part="speed",
            optimizer=self.optimizer,
        )  # fmt: skip
        engine.observer = observer or Observer()
        prover = Prover(engine, self.steps if is_proven else ())
        for step in range(4):
            before(step, engine)
            prover.train(step, self.batch())
        prover.finish()
        weights = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
        return [Proof.model_validate(each) for each in prover.proofs], weights


HONEST = [
    Setting(), Setting(attention="eager", dropout=0.1), Setting(dropout=0.1), Setting("bf16", dropout=0.1),
    Setting("fp16", dropout=0.1, accumulation=2), Setting("bf16", "eager", accumulation=4),
    Setting(optimizer="sgd"), Setting(optimizer="adafactor"), Setting("bf16", dropout=0.1, task="masked-lm"),
    Setting("bf16", hidden_act="relu"),
    # torch sums the squares of a long gradient one after another: its norm is off by more than roots of their number.
    Setting(task="masked-lm", vocabulary=1 << 15),
]  # fmt: skip


@pytest.mark.first(3)
@pytest.mark.parametrize("setting", HONEST, ids=str)
def test_an_honest_step_is_far_within_its_limits_and_keeps_its_bits(setting: Setting) -> None:
    proofs, weights = setting.train()
    assert [proof.step for proof in proofs] == list(setting.steps)
    for proof in proofs:
        assert {error.stage for error in proof.errors} == {"forward", "loss", "gradient", "clipped", "optimizer"}
        assert max((error.error or 0.0) / proof_limit(error) for error in proof.errors) < 0.7
        assert not any(is_over(error) for error in proof.errors)
        assert bool(proof.draws) == (setting.dropout > 0)
        assert not any(map(is_off, proof.draws))
    assert torch.equal(setting.train(is_proven=False)[1], weights)


def test_a_norm_that_overflows_in_its_squares_is_honest() -> None:
    """As of LayerNorms whose whole input is dropped: torch clips by infinity, and leaves no gradient."""

    steeper = at_start(lambda model: model.get_parameter("classifier.weight").mul_(1e24))
    assert not over(Setting(steps=(0,)).train(before=steeper)[0], "clipped", "optimizer")


def test_autocast_that_nobody_asked_for_is_no_wrong_formula() -> None:
    """The formats show it by themselves."""

    def leave_on(step: int, engine: Engine) -> None:
        if not step:
            engine.bare.forward = torch.autocast("cpu", torch.bfloat16)(engine.bare.forward)

    assert not over(Setting(steps=(0,)).train(before=leave_on)[0], "forward", "gradient")


class Learned(Setting):
    """Sixteen rows of one class."""

    def batch(self) -> Batch:
        batch = {name: torch.cat([value, value]) for name, value in super().batch().items()}
        return {**batch, "row_ids": torch.arange(2 * ROWS), "labels": torch.zeros(2 * ROWS, dtype=torch.long)}


def test_a_loss_of_nearly_zero_is_honest() -> None:
    """What is left where numbers cancel: in one trial of roundings it may move by nearly nothing."""
    for gap in range(50, 60):
        known = at_start(
            lambda model, gap=gap: model.get_parameter("classifier.bias").copy_(torch.tensor([gap / 10, 0]))
        )
        assert not over(Learned(steps=(0,)).train(before=known)[0], "loss"), gap


@pytest.mark.parametrize(
    "form",
    [
        functional.cross_entropy,
        lambda scores, labels: functional.nll_loss(scores.log_softmax(-1), labels),
        lambda scores, labels: (scores.logsumexp(-1) - scores.gather(1, labels[:, None])[:, 0]).mean(),
    ],
    ids=["cross_entropy", "log_softmax", "logsumexp"],
)
def test_a_cross_entropy_of_nearly_zero_rounds_as_its_sum(form: Callable[..., torch.Tensor]) -> None:
    scores = torch.randn(2 * ROWS, 2, generator=torch.Generator().manual_seed(1)) * 0.3
    scores[:, 0] += 7
    labels = torch.zeros(2 * ROWS, dtype=torch.long)

    def defined(rounded: torch.dtype | None, trial: int = 0) -> torch.Tensor:
        repeated = Repeated((), rounded, trial)
        with repeated:
            return form(repeated.entered(scores), labels)

    exact, dtype = defined(None), scores.dtype
    assert exact.item() == pytest.approx(functional.cross_entropy(scores.double(), labels).item(), rel=1e-12)
    size = moved_size(exact, dtype, *(defined(dtype, trial) for trial in range(NUMBER_TRIALS)))
    assert error_of(form(scores, labels), exact, size, dtype) < sum_limit("loss", "float32", 2) / 2


def at_start(change: Callable[[nn.Module], object]) -> Callable[[int, Engine], None]:
    """Return what changes the model before the first step."""

    @torch.no_grad()
    def changed(step: int, engine: Engine) -> None:
        if not step:
            change(engine.bare)

    return changed


def over(proofs: list[Proof], *stages: str) -> list[Any]:
    """Return the errors beyond their limits, of these stages or of all."""
    found = ((proof.step, error) for proof in proofs for error in proof.errors if is_over(error))
    return [each for each in found if not stages or each[1].stage in stages]


def first(proofs: list[Proof]) -> tuple[int, str, str]:
    """Return step, stage and name of the first tensor beyond its limit."""
    return next((proof.step, e.stage, e.name) for proof in proofs for e in proof.errors if is_over(e))


def is_native(value: torch.Tensor) -> bool:
    return value.dtype != torch.float64


def drops_terms(value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    if is_native(value) and weight.shape == (64, 32):
        value = torch.cat((value[..., :-1], torch.zeros_like(value[..., -1:])), -1)
    return PLAIN[0](value, weight, bias)


def skips_tail(value: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> torch.Tensor:
    found = PLAIN[1](value, shape, weight, bias, eps)
    return torch.cat((found[..., :-1], found[..., -1:] * 1.5), -1) if is_native(value) else found


def ignores_mask(query: Any, key: Any, value: Any, attn_mask: Any = None, **named: Any) -> torch.Tensor:
    return PLAIN[2](query, key, value, attn_mask=None if is_native(query) else attn_mask, **named)


@pytest.mark.first(3)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("operation", "wrong", "place"),
    [
        ("linear", drops_terms, LINEAR),
        ("layer_norm", skips_tail, "bert.embeddings.LayerNorm"),
        ("scaled_dot_product_attention", ignores_mask, "bert.encoder.layer.0.attention.self"),
    ],
)
def test_a_wrong_kernel_shows_at_its_module(
    monkeypatch: pytest.MonkeyPatch, operation: str, wrong: Any, place: str, precision: Precision
) -> None:
    monkeypatch.setattr(functional, operation, wrong)
    assert first(Setting(precision).train()[0]) == (0, "forward", place)


def test_gradients_that_are_not_cleared_show_at_the_first_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = torch.optim.AdamW.zero_grad, [0]

    def cleared(self: Any, **named: Any) -> None:
        calls[0] += 1
        if calls[0] != 3:
            plain(self, **named)

    monkeypatch.setattr(torch.optim.AdamW, "zero_grad", cleared)
    step, stage, _ = first(Setting().train()[0])
    assert (step, stage) == (2, "gradient")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor"])
def test_an_update_that_is_too_long_shows(monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}[optimizer]
    plain = kind.step

    def longer(self: Any, *given: Any) -> Any:
        values = [value for group in self.param_groups for value in group["params"]]
        before = [value.detach().clone() for value in values]
        found = plain(self, *given)
        with torch.no_grad():
            for value, old in zip(values, before, strict=True):
                value.copy_(old + (value - old) * 1.03)
        return found

    monkeypatch.setattr(kind, "step", longer)
    assert first(Setting(optimizer=optimizer).train()[0])[:2] == (0, "optimizer")


def test_a_gradient_that_a_kernel_gets_wrong_shows_at_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return value.clone()

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return gradients[0] * 1.05

    def wrong(query: Any, key: Any, value: Any, **named: Any) -> torch.Tensor:
        query = Wrong.apply(query) if is_native(query) else query  # type: ignore[no-untyped-call]
        return PLAIN[2](query, key, value, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", wrong)
    step, stage, name = first(Setting().train()[0])
    assert (step, stage) == (0, "gradient")
    assert name.endswith(("attention.self.query.weight", "attention.self.query.bias"))


def test_a_loss_that_is_not_that_of_its_logits_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = functional.cross_entropy
    monkeypatch.setattr(functional, "cross_entropy", lambda *given, **named: plain(*given, **named) * 1.01)
    assert first(Setting().train()[0]) == (0, "loss", "loss")


def test_a_weight_that_changes_between_two_steps_shows() -> None:
    def change(step: int, engine: Engine) -> None:
        if step == 3:
            next(engine.bare.parameters()).data[0, 0] += 1e-3

    assert first(Setting().train(before=change)[0]) == (2, "state", "weights")


@pytest.mark.long
@pytest.mark.parametrize("setting", [Setting(), Setting(task="masked-lm", vocabulary=1 << 15)], ids=str)
def test_clipping_that_is_not_by_its_norm_shows(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.utils.clip_grad_norm_
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda values, most: plain(values, most * 1.0005))
    assert first(setting.train()[0])[:2] == (0, "clipped")


def test_a_mask_is_known_also_where_dropout_reads_zeros() -> None:
    """By chance one number in some trainings, and a whole feature of a pruned model."""

    def prune(_step: int, engine: Engine) -> None:
        dense = engine.bare.get_submodule("bert.encoder.layer.0.attention.output.dense")
        dense.weight.data[0], dense.bias.data[0] = 0.0, 0.0

    proofs, _ = Setting(dropout=0.1).train(before=prune)
    assert not [error for _, error in over(proofs) if error.stage != "state"]


SHARP = [
    (Setting(dropout=0.1), 60), (Setting("bf16", dropout=0.1), 60),
    (Setting(dropout=0.3), 3000), (Setting("bf16", "eager", 0.3), 1000), (Setting("bf16", dropout=1.0), 60),
]  # fmt: skip


@pytest.mark.first(2)
@pytest.mark.parametrize(("setting", "scale"), SHARP, ids=str)
def test_attention_that_sees_few_tokens_is_honest(setting: Setting, scale: float) -> None:
    """As of a training that diverges: its weights underflow or change sides, and its gradients are denormal."""

    def sharpen(step: int, engine: Engine) -> None:
        named = engine.bare.named_parameters() if not step else ()
        with torch.no_grad():
            for value in (value for name, value in named if name.endswith(("query.weight", "key.weight"))):
                value.mul_(scale)
        if not step:
            torch.manual_seed(1)

    for proof in setting.train(before=sharpen)[0]:
        assert not over([proof])
        assert not [draws for draws in proof.draws if is_off(draws)]
        assert not proof.lost


def test_a_step_that_loss_scaling_skips_says_nothing_and_the_next_one_is_proven() -> None:
    """The gradient of the logits is the first to exceed fp16."""

    def raise_scale(step: int, engine: Engine) -> None:
        if not step:
            engine.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)

    skipped, *_, proven = Setting("fp16", steps=(0,)).train(before=raise_scale)[0]
    assert (skipped.step, skipped.errors, skipped.tensors, bool(skipped.lost)) == (0, (), 0, True)
    assert {found.stage for found in proven.errors} == {"forward", "loss", "gradient", "clipped", "optimizer"}
    assert not any(map(is_over, proven.errors))


def test_elements_that_dropout_keeps_are_counted() -> None:
    (draws, *_) = Setting(dropout=0.1).train()[0][0].draws
    assert draws.name == "bert.embeddings.dropout"
    assert (draws.rate, draws.calls, draws.elements) == (0.1, 1, ROWS * LENGTH * 32)
    assert 0.88 < draws.kept / draws.elements < 0.92


def test_attention_that_drops_nothing_shows_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two platforms may share such a library: each module with a rate must draw."""
    plain = functional.scaled_dot_product_attention
    keeps_all = lambda *given, **named: plain(*given, **named | {"dropout_p": 0.0})  # noqa: E731
    monkeypatch.setattr(functional, "scaled_dot_product_attention", keeps_all)
    for proof in Setting("bf16", dropout=0.1).train()[0]:
        layers = [f"bert.encoder.layer.{place}.attention.self.dropout" for place in range(2)]
        assert [draws.name for draws in proof.draws if is_off(draws)] == layers


@pytest.mark.compiler
@pytest.mark.long
def test_a_compiled_step_proves_its_loss_and_update():
    """The loss of a compiled model gives its logits no gradient from outside."""
    setting = Setting(precision="bf16", dropout=0.1, steps=(0,))
    speed = SpeedSpec(steps=10, compile=True)
    (proof,), _ = setting.train(before=lambda step, engine: None if step else compile_model(engine, speed))
    assert {found.stage for found in proof.errors} == {"loss", "clipped", "optimizer"}
    assert not over([proof])


class Cancelling(Setting):
    """Pairs of rows that differ in one token, with opposite labels and even odds, whose gradients cancel."""

    def batch(self) -> Batch:
        batch = super().batch()
        for name in ("input_ids", "attention_mask"):
            batch[name] = batch[name][:1].repeat(ROWS, 1)
        batch["input_ids"][::2, 3] += 1
        return {**batch, "labels": torch.arange(ROWS) % 2}

    def even(self, model: nn.Module) -> None:
        """Balance the logits."""
        fed = {name: value for name, value in self.batch().items() if name not in ("row_ids", "labels")}
        logits = model(**fed).logits
        model.classifier.bias[1] -= (logits[:, 1] - logits[:, 0]).mean()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_that_cancel_over_the_rows_are_honest(precision):
    """A position's gradient is a sum over the rows, inside of the embeddings' block."""
    setting = Cancelling(precision=precision, steps=(0,))
    assert not over(setting.train(before=at_start(setting.even))[0])


class Alike(Setting):
    """Rows of one word at places that the model does not tell apart, as in texts of few words after some training."""

    def batch(self) -> Batch:
        batch = super().batch()
        return {**batch, "input_ids": torch.full_like(batch["input_ids"], 7) * batch["attention_mask"]}


@pytest.mark.first(3)
@pytest.mark.parametrize("share", [1e-2, 1e-4, 0.0])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gradients_that_cancel_within_a_block_are_honest(precision, attention, share):
    """Attention to tokens that are alike gives its queries almost no gradient: one number less another."""
    setting = Alike(precision=precision, attention=attention, steps=(0, 2))
    flatten = at_start(lambda model: model.bert.embeddings.position_embeddings.weight.mul_(share))
    assert not over(setting.train(before=flatten)[0])


class Sure(Setting):
    """A trained head, whose loss is nearly zero."""

    def batch(self) -> Batch:
        return {**super().batch(), "labels": torch.zeros(ROWS, dtype=torch.long)}


@pytest.mark.first(3)
@pytest.mark.parametrize("gap", [10, 16, 60, 600])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gradients_near_the_smallest_number_are_honest(precision, gap):
    """A key's bias gets rounding alone, whose square no format holds; fp16 holds few of the scaled gradients."""
    decide = at_start(lambda model: model.classifier.bias.copy_(torch.tensor([gap / 2, -gap / 2])))
    assert not over(Sure(precision=precision, steps=(0, 2)).train(before=decide)[0])


def test_gradients_of_a_saturated_function_are_honest():
    """torch takes 1 less a square of what tanh gives, which is nearly 1."""
    saturate = at_start(lambda model: model.bert.pooler.dense.bias.fill_(8.0))
    assert not over(Setting(steps=(0, 2)).train(before=saturate)[0])


class Unlabelled(Setting):
    """Rows of which the first micro-batch hides no token."""

    def batch(self) -> Batch:
        batch = super().batch()
        batch["labels"][: ROWS // 2] = -100
        return batch


def test_a_micro_batch_without_labels_has_no_share_in_the_gradients():
    """The sum of its logits, which keeps it in the graph, is more than fp16 holds."""
    raise_logits = at_start(lambda model: model.cls.predictions.bias.fill_(100.0))
    proofs, _ = Unlabelled("fp16", accumulation=2, task="masked-lm", steps=(0,)).train(before=raise_logits)
    # Without an update, loss scaling has skipped the step.
    assert "optimizer" in {found.stage for found in proofs[0].errors}
    assert not over(proofs)


@pytest.mark.parametrize("given", [{"enable_gqa": True}, {"is_causal": True}, {"attn_mask": "empty row"}], ids=str)
def test_attention_by_its_definition_is_that_of_the_kernel(given):
    query, key, value = (torch.randn(2, heads, 6, 8, requires_grad=True) for heads in (4, 2, 2))
    if not given.get("enable_gqa"):
        key, value = (each.repeat_interleave(2, 1) for each in (key, value))
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    mask[0, :, 1] = False
    given = {**given, "attn_mask": mask} if "attn_mask" in given else given
    native = functional.scaled_dot_product_attention(query, key, value, **given)
    repeated = Repeated((), torch.float32)
    with repeated:
        exact = functional.scaled_dot_product_attention(*map(repeated.entered, (query, key, value)), **given)
    assert torch.allclose(native.double(), exact, rtol=1e-5, atol=1e-6)


def test_a_second_repetition_that_fails_proves_nothing_and_ends_no_training(monkeypatch):
    """As one that finds too little memory."""
    gradients, defined = Repetitions.gradients, Prover._defined

    def first_only(self, call, gradient, rounded=None, trial=0):
        return gradients(self, call, gradient, rounded, trial) if rounded is None else {}

    def fails(self, logits, labels, rounded=None):
        if rounded is not None:
            raise torch.OutOfMemoryError("planted")
        return defined(self, logits, labels)

    monkeypatch.setattr(Repetitions, "gradients", first_only)
    monkeypatch.setattr(Prover, "_defined", fails)
    (proof,), weights = Setting(steps=(0,)).train()
    assert "loss: OutOfMemoryError: planted" in proof.lost
    assert torch.equal(weights, Setting().train(is_proven=False)[1])


def test_a_replaced_dropout_is_read_as_dropout(monkeypatch):
    """A library's own function has another name, and no attribute of torch's."""
    drop = functional.dropout

    def dropped(value, p=0.5, training=True, inplace=False):
        return drop(value, p, training, inplace)

    monkeypatch.setattr(functional, "dropout", dropped)
    setting = Setting(attention="eager", dropout=0.1, steps=(0,))
    (proof,), weights = setting.train()
    assert {draws.rate for draws in proof.draws} == {0.1}
    assert not over([proof])
    assert torch.equal(weights, setting.train(is_proven=False)[1])


def test_a_wrapped_function_is_called_once_in_a_step_that_proves_itself(monkeypatch):
    """torch hands its own call to a mode by its name, which is the wrapper's: a mode would call it twice."""
    entropy = functional.cross_entropy
    monkeypatch.setattr(
        functional, "cross_entropy", lambda scores, *given, **named: entropy(scores * 2, *given, **named)
    )
    setting = Setting(steps=(0,))
    assert torch.equal(setting.train()[1], setting.train(is_proven=False)[1])


def test_a_module_that_computes_again_in_the_backward_pass_is_lost_and_trains_on():
    """Its second forward pass has native weights, which are not fp64."""

    def recompute(step: int, engine: Engine) -> None:
        block = engine.bare.bert.encoder.layer[0].intermediate
        if not step:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)

    (proof,), weights = Setting(steps=(0,)).train(before=recompute)
    assert "layer.0.intermediate" in proof.lost
    assert not over([proof])
    assert torch.equal(weights, Setting().train(before=recompute, is_proven=False)[1])
