"""Each rule for a record by itself: its fault is named, and its honest exception is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

import plumbline
from plumbline.cli.main import main
from plumbline.judge.alone import judge_alone
from plumbline.records import LoadedRecord
from plumbline.schema.captured import Exchange
from plumbline.schema.verdict import Judgement
from plumbline.train.capture.recorded import may_round
from tests.said import said


class Net(nn.Module):
    """Two linear layers, with dropout that may ask for its mode."""

    def __init__(self, kind: type[nn.Linear] = nn.Linear, layers: int = 2, *, asks: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(kind(6, 6) for _ in range(layers)))
        self.norm, self.drop, self.asks = nn.BatchNorm1d(6), nn.Dropout(0.5), asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.norm(self.layers(x)), self.drop.p, training=self.training or not self.asks)


class Exact(nn.Linear):
    """Linear layer that autocast does not reach."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return functional.linear(x.float(), self.weight, self.bias)


class Idle(torch.optim.Optimizer):
    """Optimizer without an update."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        pass


class Loop:
    """A healthy loop; its subclasses plant a fault, or do the same on purpose."""

    micro_batches = 1

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = self.make()
        self.optimizer = self.update()

    def make(self) -> nn.Module:
        return Net()

    def update(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.held(), lr=0.1)

    def held(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def forward(self) -> torch.Tensor:
        rows = torch.randn(8, 6, dtype=next(self.model.parameters()).dtype)
        return self.model(rows).float().square().mean()

    def backward(self) -> None:
        for _ in range(self.micro_batches):
            self.forward().backward()

    def after(self) -> None:
        self.optimizer.zero_grad()

    def step(self, _place: int) -> None:
        self.backward()
        self.optimizer.step()
        self.after()

    def train(self, folder: Path, **settings: Any) -> LoadedRecord:
        with plumbline.capture(folder, self.model, self.optimizer, steps=6, seed=7, **settings) as run:
            for place in range(6):
                self.step(place)
                run.step()
        return plumbline.read_record(folder)


class Frozen(Loop):
    def held(self) -> list[nn.Parameter]:
        return [value.requires_grad_(False) for value in self.model.layers.parameters()]


class HandMade(Loop):
    """Gradients by hand, without a backward pass."""

    def backward(self) -> None:
        for value in self.model.parameters():
            value.grad = torch.ones_like(value)
        self.model(torch.ones(2, 6))


class Cleared(Loop):
    """Gradients that are cleared before the update."""

    def backward(self) -> None:
        super().backward()
        self.optimizer.zero_grad()


class Late(Loop):
    """Gradients in one step alone, which is not recorded in full."""

    updates_always = True

    def step(self, place: int) -> None:
        loss = self.forward()
        if place == 3:
            loss.backward()
        if place == 3 or self.updates_always:
            self.optimizer.step()
        self.after()

    def train(self, folder: Path, **settings: Any) -> LoadedRecord:
        found = super().train(folder, **settings)
        captured = found.record.evidence.captured
        assert 3 not in captured.recorded
        return found


class WarmUp(Late):
    """Steps without an update before the first one."""

    updates_always = False


class TwoModels(Loop):
    def make(self) -> Any:
        return {"generator": nn.Linear(6, 6), "critic": nn.Linear(6, 1)}

    def update(self) -> Any:
        return [torch.optim.SGD(each.parameters(), lr=0.1) for each in self.model.values()]


class OneWaits(TwoModels):
    """Two models, of which one trains behind the recorded steps."""

    def step(self, _place: int) -> None:
        made = self.model["generator"](torch.randn(8, 6)).detach()
        self.model["critic"](made).square().mean().backward()
        self.optimizer[1].step()
        self.optimizer[1].zero_grad()


class Masters(Loop):
    """An optimizer of fp32 copies, as of half precision before autocast."""

    def make(self) -> nn.Module:
        return Net().bfloat16()

    def held(self) -> list[nn.Parameter]:
        self.copies = [nn.Parameter(value.detach().float()) for value in self.model.parameters()]
        return self.copies

    def backward(self) -> None:
        super().backward()
        for copy, value in zip(self.copies, self.model.parameters(), strict=True):
            copy.grad = value.grad.float()

    def after(self) -> None:
        with torch.no_grad():
            for copy, value in zip(self.copies, self.model.parameters(), strict=True):
                value.copy_(copy)
        self.model.zero_grad()


class FrozenBody(Loop):
    """A trained head on a frozen body, all of which the optimizer holds."""

    def make(self) -> nn.Module:
        model = Net()
        model.layers.requires_grad_(False)
        return model


class Skipping(Loop):
    """A loss scale that no recorded step survives."""

    def step(self, _place: int) -> None:
        self.scaler.scale(1e30 * self.forward()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.after()

    def train(self, folder: Path, **settings: Any) -> LoadedRecord:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, backoff_factor=0.99)
        return super().train(folder, scaler=self.scaler, **settings)


class StepByStep(Loop):
    """An update behind three micro-batches, each of which ends a step."""

    updates = 3

    def step(self, place: int) -> None:
        self.backward()
        if place % self.updates == self.updates - 1:
            self.optimizer.step()
            self.after()


class LongAccumulating(StepByStep):
    """An update behind more micro-batches than are recorded."""

    updates = 8


class Unheld(Loop):
    def held(self) -> list[nn.Parameter]:
        return [value for name, value in self.model.named_parameters() if name != "layers.1.weight"]


class HeldByHand(Unheld):
    def after(self) -> None:
        weight = self.model.layers[1].weight
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad)
        self.model.zero_grad()


class Stale(Loop):
    def after(self) -> None:
        pass


class Accumulating(Loop):
    micro_batches = 3


class GeneratorFirst(TwoModels):
    """Two models, where the first one's loss leaves gradients in the second one, which are cleared before its own."""

    def step(self, _place: int) -> None:
        rows = torch.randn(8, 6)
        for optimizer, made in zip(self.optimizer, (False, True), strict=True):
            optimizer.zero_grad()
            images = self.model["generator"](rows)
            self.model["critic"](images.detach() if made else images).square().mean().backward()
            optimizer.step()


class Standstill(Loop):
    def update(self) -> torch.optim.Optimizer:
        return Idle(self.held())


class TinyRate(Loop):
    """Updates that bf16 rounds away."""

    def make(self) -> nn.Module:
        return Net().bfloat16()

    def update(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.held(), lr=1e-30)


class WarmingUp(Standstill):
    def after(self) -> None:
        super().after()
        self.optimizer.param_groups[0]["lr"] = 0.0


class Unreached(Loop):
    def make(self) -> nn.Module:
        return Net(Exact)

    def forward(self) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward()


class ExactHead(Unreached):
    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), Exact(6, 6))


class HalfModel(Loop):
    """Half precision of weights, without autocast."""

    def make(self) -> nn.Module:
        return Net().bfloat16()


class Attending(Loop):
    """A module with parameters of its own beside a child's."""

    def make(self) -> nn.Module:
        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.own, self.scale = nn.MultiheadAttention(6, 2), nn.Parameter(torch.ones(6))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.own(x, x, x, need_weights=False)[0] * self.scale

        return nn.Sequential(Attention(), nn.Linear(6, 6))


class HalfAdam(HalfModel):
    """Half precision of weights, whose second moments are below its smallest normal number."""

    def make(self) -> nn.Module:
        return Net().half()

    def update(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.held(), lr=1e-2, eps=1e-3)


class Normed(Loop):
    """Weights that a hook divides by their spectral norm, which it keeps in a buffer."""

    def make(self) -> nn.Module:
        return nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 6))


CONTRADICTIONS: dict[type[Loop], tuple[str, str]] = {
    Frozen: ("gradient", "parameters"), Cleared: ("gradient", "parameters"),
    Unheld: ("optimizer", "layers.1.weight"), Stale: ("gradient", "norm.weight"),
    Standstill: ("optimizer", "weights"), Unreached: ("precision", "Exact"),
}  # fmt: skip


def judged(kind: type[Loop], folder: Path) -> Judgement:
    return judge_alone(kind().train(folder))


@pytest.mark.parametrize("kind", CONTRADICTIONS, ids=lambda kind: kind.__name__)
def test_a_record_that_contradicts_itself_says_so(kind: type[Loop], tmp_path: Path) -> None:
    judgement = judged(kind, tmp_path)
    assert judgement.verdict == "drift"
    assert (judgement.causes[0].code, judgement.first_divergence.at) == CONTRADICTIONS[kind]


@pytest.mark.parametrize(
    "kind", [Loop, HandMade, HeldByHand, Accumulating, GeneratorFirst, TinyRate, WarmingUp, ExactHead, HalfModel,
             HalfAdam, Attending, Normed, Late, WarmUp, OneWaits, Masters, FrozenBody, Skipping, StepByStep,
             LongAccumulating],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_an_honest_loop_is_not_accused(kind: type[Loop], tmp_path: Path) -> None:
    judgement = judged(kind, tmp_path)
    assert [said(finding.detail) for finding in judgement.findings if finding.outcome == "drift"] == []


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> LoadedRecord:
    return Loop().train(tmp_path_factory.mktemp("alone") / "healthy")


def changed(loaded: LoadedRecord, part: str, **values: Any) -> LoadedRecord:
    evidence = loaded.record.evidence
    own = getattr(evidence, part).model_copy(update=values)
    return replace(
        loaded, record=loaded.record.model_copy(update={"evidence": evidence.model_copy(update={part: own})})
    )


def test_processes_apart_are_a_fault_only_where_they_train_one_model(healthy: LoadedRecord) -> None:
    def verdict(*, replicated: bool, own_equal: bool, deviation: float = 1.0) -> str:
        apart = Exchange(step=0, factor=1.0, deviation=deviation, apart=((1, "norm.weight"),), own_equal=own_equal)
        return judge_alone(changed(healthy, "captured", exchanges=(apart,), replicated=replicated)).verdict

    assert verdict(replicated=True, own_equal=False) == verdict(replicated=False, own_equal=True) == "drift"
    assert verdict(replicated=False, own_equal=False, deviation=0.0) == "drift"  # one sees the mean of all
    assert verdict(replicated=False, own_equal=False) == "pass"  # such as independent trainings, or sharded weights


@pytest.mark.parametrize(("first", "verdict"), [(0, "drift"), (4, "pass")])
def test_processes_that_begin_to_exchange_are_replicas_and_those_that_end_to_are_free(
    healthy: LoadedRecord, first: int, verdict: str
) -> None:
    apart = Exchange(step=first, factor=1.0, deviation=1.0, apart=((1, "norm.weight"),))
    exchanged = Exchange(step=2, factor=1.0, deviation=0.0)
    record = changed(healthy, "captured", exchanges=tuple(sorted((apart, exchanged), key=lambda each: each.step)))
    assert judge_alone(record).verdict == verdict


def _off(loaded: LoadedRecord) -> LoadedRecord:
    probe = loaded.record.evidence.probe
    first = probe.proofs[0]
    errors = (first.errors[0].replace(error=1e9), *first.errors[1:])
    return changed(loaded, "probe", proofs=(first.replace(errors=errors), *probe.proofs[1:]))


def test_a_definition_that_both_sides_leave_is_a_note_of_the_pair_and_a_contradiction_of_each(
    healthy: LoadedRecord,
) -> None:
    off = _off(healthy)
    assert judge_alone(off).verdict == "drift"
    assert plumbline.compare(healthy, off, throughput=False).verdict == "drift"
    pair = plumbline.compare(off, replace(off), throughput=False)
    assert pair.verdict == "pass"
    assert any("in either record" in said(note.text) for note in pair.notes)


class Evaluating(Loop):
    def make(self) -> nn.Module:
        return Net(asks=False).eval()


class FrozenNorm(Loop):
    def make(self) -> nn.Module:
        model = Net()
        model.norm.eval()
        return model


class EvaluatingBetween(Loop):
    """A pass in evaluation mode behind each step, in which the model's function draws nevertheless."""

    asks = False

    def make(self) -> nn.Module:
        return Net(asks=self.asks)

    def after(self) -> None:
        super().after()
        self.model.eval()
        self.evaluate()
        self.model.train()

    def evaluate(self) -> None:
        with torch.no_grad():
            self.model(torch.randn(8, 6))


class EvaluatingRightly(EvaluatingBetween):
    asks = True


class SamplingDropout(EvaluatingBetween):
    """Evaluation that draws dropout on purpose: the module is in training mode."""

    def evaluate(self) -> None:
        self.model.drop.train()
        super().evaluate()


@pytest.mark.parametrize(
    ("kind", "is_noted"),
    [(Evaluating, True), (EvaluatingBetween, True), (FrozenNorm, False), (EvaluatingRightly, False),
     (SamplingDropout, False)],
)  # fmt: skip
def test_draws_in_evaluation_mode_are_a_note(kind: type[Loop], is_noted: bool, tmp_path: Path) -> None:
    judgement = judged(kind, tmp_path)
    assert judgement.verdict == "pass"
    noted = "modules in evaluation mode draw dropout: model"
    assert any(said(note.text) == noted for note in judgement.notes) is is_noted


def test_another_mode_is_named_with_its_modules(healthy: LoadedRecord, tmp_path: Path) -> None:
    judgement = plumbline.compare(healthy, FrozenNorm().train(tmp_path), throughput=False)
    assert judgement.first_divergence.at == "mode"
    assert "norm" in said(judgement.findings[0].detail)


@pytest.mark.parametrize(("kind", "code"), [(Loop, 0), (Stale, 1)])
def test_the_command_takes_one_folder(
    kind: type[Loop], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind().train(tmp_path / "run")
    assert main(["compare", str(tmp_path / "run")]) == code
    text = " ".join(capsys.readouterr().out.split())
    assert ("gradients are not cleared" in text) is bool(code)
    assert "not captured, and so not judged" in text


@pytest.mark.parametrize(
    ("model", "device", "why"),
    [
        (nn.Conv2d(1, 1, 1), "cuda", "cudnn.allow_tf32"),
        (nn.Linear(1, 1), "cuda", ""), (nn.Conv2d(1, 1, 1), "cpu", ""),
    ],
)  # fmt: skip
def test_a_gpu_that_may_round_operands_is_not_held_to_fp32(model: nn.Module, device: str, why: str) -> None:
    """Torch's defaults allow TF32 to convolutions, and not to matrix products."""
    assert may_round(model, torch.device(device)).endswith(why)
    assert bool(may_round(model, torch.device(device))) is bool(why)


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 6), lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh())])
def test_a_model_without_blocks_is_proven_itself(tmp_path: Path, make: Any) -> None:
    loop = Loop()
    loop.model = make()
    loop.optimizer = loop.update()
    probe = loop.train(tmp_path).record.evidence.probe
    names = {(error.stage, error.name) for proof in probe.proofs for error in proof.errors}
    assert ("forward", "model") in names
    assert [name for stage, name in names if stage == "gradient" and name.endswith("weight")]


def test_a_parameter_beside_children_is_proven_and_one_that_no_module_shows_is_told(tmp_path: Path) -> None:
    probe = Attending().train(tmp_path).record.evidence.probe
    proven = {error.name for error in probe.proofs[0].errors if error.stage == "gradient"}
    assert {"0.own.in_proj_weight", "0.own.in_proj_bias"} <= proven
    assert "0.scale: is used by a function" in probe.proofs[0].lost


@pytest.mark.parametrize("kind", [Skipping, LongAccumulating])
def test_a_record_without_an_update_says_so(kind: type[Loop], tmp_path: Path) -> None:
    captured = kind().train(tmp_path).record.evidence.captured
    assert "the update: no optimizer ran" in captured.unknown


class Closing(Loop):
    """Gradients, and what is done to them, in a closure that the optimizer calls, as in Lightning."""

    is_wrong = False

    def update(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.held(), lr=1e-2)

    def closure(self) -> float:
        loss = self.forward()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        return float(loss.detach())

    def step(self, place: int) -> None:
        self.optimizer.step(self.closure) if place % 2 else self.optimizer.step(closure=self.closure)

    def train(self, folder: Path, **settings: Any) -> LoadedRecord:
        if self.is_wrong:
            weight = next(self.model.parameters())
            self.optimizer.register_step_post_hook(lambda *_: weight.detach().mul_(1.001))
        return super().train(folder, **settings)


class WrongUpdate(Closing):
    is_wrong = True


def test_an_update_of_a_closure_is_proven_and_its_clipping_shown(tmp_path: Path) -> None:
    record = Closing().train(tmp_path / "right")
    probe, captured = record.record.evidence.probe, record.record.evidence.captured
    assert all({"forward", "gradient", "optimizer"} <= {e.stage for e in proof.errors} for proof in probe.proofs)
    assert [each.max_norm for each in captured.exchanges] == pytest.approx([1e-3] * len(captured.recorded), rel=1e-2)
    assert not [why for why in captured.unknown if "closure" in why]
    assert judge_alone(record).verdict == "pass"
    wrong = judged(WrongUpdate, tmp_path / "wrong")
    assert [cause.code for cause in wrong.causes] == ["optimizer"]


class Normed32(Loop):
    """Gemma's norm within bf16, whose kernel in fp32 is off by a share."""

    share = 0.0

    def make(self) -> nn.Module:
        share = self.share

        class Norm(GemmaRMSNorm):
            def _norm(self, x: torch.Tensor) -> torch.Tensor:
                normed = super()._norm(x)
                return normed * (1 + share) if normed.dtype == torch.float32 else normed

        return nn.Sequential(nn.Linear(6, 64), Norm(64), nn.Linear(64, 6)).bfloat16()


class OffNorm(Normed32):
    share = 0.025


def test_a_norm_in_fp32_within_half_precision_is_proven_by_its_own_roundings(tmp_path: Path) -> None:
    assert judged(Normed32, tmp_path / "right").verdict == "pass"
    wrong = judged(OffNorm, tmp_path / "wrong")
    assert (wrong.causes[0].code, wrong.first_divergence.at) == ("operator", "1")


class Double(Loop):
    """A training in fp64, whose modules are their own definitions, but no gradient and no update is."""

    factor = 1.0

    def make(self) -> nn.Module:
        return nn.Sequential(nn.LSTMCell(6, 6), _First(), nn.Linear(6, 6)).double()

    def backward(self) -> None:
        self.model[2].weight.register_hook(lambda gradient: gradient * self.factor)
        super().backward()


class _First(nn.Module):
    def forward(self, states: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return states[0]


class OffDouble(Double):
    factor = 1 + 1e-10


def test_a_training_in_fp64_is_proven(tmp_path: Path) -> None:
    record = Double().train(tmp_path / "right")
    probe = record.record.evidence.probe
    proven = {(error.stage, error.name) for error in probe.proofs[0].errors}
    assert {("forward", "0"), ("gradient", "2.weight"), ("optimizer", "0.weight_hh")} <= proven
    assert judge_alone(record).verdict == "pass"
    assert [cause.code for cause in judged(OffDouble, tmp_path / "wrong").causes] == ["gradient"]
