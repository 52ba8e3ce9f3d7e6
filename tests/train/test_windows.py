"""Windows of a running training: faults of `learn` alone, on a machine whose rounding differs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from plumbline.judge import compare
from plumbline.records import load_record
from plumbline.schema.errors import StoppedError
from plumbline.schema.spec import RunSpec
from plumbline.schema.verdict import Judgement
from plumbline.train import batches, engine, evaluation, windows
from plumbline.train import learn as learn_module
from plumbline.train.engine import Engine
from plumbline.train.models import dropout
from plumbline.train.tasks import Answers, Task
from tests.said import said
from tests.train.conftest import RECIPE, Trained, Workshop, before_steps

LEARN = {"steps": 10, "evaluate_every": 5, "checkpoint_every": 4, "evaluation_rows": 24}
Patch = pytest.MonkeyPatch


def spec_of(workshop: Workshop, **changes: Any) -> RunSpec:
    return workshop.spec(probe=None, learn={**LEARN, **changes})


@contextlib.contextmanager
def other_rounding() -> Iterator[None]:
    """Train with another number of threads than the reference: a difference that explains different rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference(workshop: Workshop) -> Trained:
    return workshop.train(spec_of(workshop))


def judged(reference: Trained, candidate: Trained) -> Judgement:
    return compare(load_record(reference.folder), load_record(candidate.folder))


def on_model(patch: Patch, change: Any) -> None:
    """Change the model of `learn` once it is built."""
    plain = learn_module.LearnRun._engine

    def changed(self: Any) -> Engine:
        made = plain(self)
        change(made)
        return made

    patch.setattr(learn_module.LearnRun, "_engine", changed)


def no_decay(patch: Patch) -> None:
    on_model(patch, lambda made: made.optimizer.param_groups[0].update(weight_decay=0.0))


def beta2(patch: Patch) -> None:
    on_model(patch, lambda made: [group.update(betas=(0.9, 0.99)) for group in made.optimizer.param_groups])


def tanh_gelu(patch: Patch) -> None:
    def change(made: Engine) -> None:
        made.bare.bert.encoder.layer[1].intermediate.intermediate_act_fn = nn.GELU("tanh")

    on_model(patch, change)


def frozen_encoder(patch: Patch) -> None:
    on_model(patch, lambda made: made.bare.bert.encoder.requires_grad_(requires_grad=False))


def bf16_softmax(patch: Patch) -> None:
    plain = nn.functional.softmax

    def narrow(scores: torch.Tensor, dim: int) -> torch.Tensor:
        return plain(scores.bfloat16(), dim=dim).float()

    functional = SimpleNamespace(softmax=narrow)
    patch.setattr(dropout, "nn", SimpleNamespace(functional=functional, Module=nn.Module, Dropout=nn.Dropout))


def bf16_queries(patch: Patch) -> None:
    plain, step, in_step = dropout._attention, Engine.step, [False]

    def stepped(self: Engine, *given: Any) -> Any:
        in_step[0] = True
        try:
            return step(self, *given)
        finally:
            in_step[0] = False

    def narrow(module: Any, query: torch.Tensor, *given: Any, **named: Any) -> Any:
        return plain(module, query.bfloat16().float() if in_step[0] else query, *given, **named)

    patch.setattr(Engine, "step", stepped)
    patch.setattr(dropout, "_attention", narrow)


def hidden_tokens(patch: Patch) -> None:
    """Hide the tokens beyond the eighth, from step 6 on."""
    forward, steps = Engine._forward, [0]

    def narrow(self: Engine, piece: Any, share: float) -> torch.Tensor:
        if steps[0] >= 6:
            piece = {**piece, "attention_mask": piece["attention_mask"].clone()}
            piece["attention_mask"][:, 8:] = 0
        return forward(self, piece, share)

    before_steps(patch, lambda _, step: steps.__setitem__(0, step))
    patch.setattr(Engine, "_forward", narrow)


def frozen_masks(patch: Patch) -> None:
    patch.setattr(dropout.DropoutClock, "starts", lambda *_: None)


def no_clipping(patch: Patch) -> None:
    patch.setattr(engine.torch.nn.utils, "clip_grad_norm_", lambda *_: None)


def class_weights(patch: Patch) -> None:
    def loss(_self: Any, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 1.2]))

    patch.setattr(engine.Observer, "loss", loss)


def reversed_labels(patch: Patch) -> None:
    """Reverse the labels of 16 evaluated rows, behind those of a window."""
    plain = batches.EvaluationRows.__getitems__

    def reverse(self: Any, positions: list[int]) -> Any:
        fields = plain(self, positions)
        for place, position in enumerate(positions):
            if 8 <= position < 24:
                fields["labels"][place] = 1 - fields["labels"][place]
        return fields

    patch.setattr(batches.EvaluationRows, "__getitems__", reverse)


def half_evaluation(patch: Patch) -> None:
    """Evaluate in bf16."""
    plain = evaluation.autocast
    patch.setattr(evaluation, "autocast", lambda _, device: plain("bf16", device))


def margin(patch: Patch) -> None:
    """Answer with the second class only if it leads by far."""
    plain = Task.answers

    def careful(task: Task, logits: Any, labels: Any) -> Any:
        best = (logits[:, 1] - logits[:, 0] > 0.5).astype(labels.dtype)
        right = best == labels
        kept = plain(task, logits, labels).kept
        return Answers(best, kept, int(right.sum()), right.astype(np.uint8))

    patch.setattr(Task, "answers", careful)


def moments_lost(patch: Patch) -> None:
    """Lose the second moments where a checkpoint is saved, between the windows."""
    plain = learn_module.save_checkpoint

    def save(folder: Any, made: Engine, *rest: Any) -> None:
        plain(folder, made, *rest)
        for state in made.optimizer.state.values():
            state["exp_avg_sq"].zero_()

    patch.setattr(learn_module, "save_checkpoint", save)


FAULTS = {
    "optimizer": (no_decay, beta2, moments_lost),
    # Only the step narrows its queries, and so no measured operation shows a format: the proof shows the module.
    "operator": (tanh_gelu, hidden_tokens, bf16_queries), "precision": (bf16_softmax,),
    "gradient": (frozen_encoder, no_clipping), "rng": (frozen_masks,), "loss": (class_weights,),
    "data.labels": (reversed_labels,), "evaluation": (half_evaluation, margin),
}  # fmt: skip


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("code", "plant"),
    [
        pytest.param(code, plant, id=plant.__name__, marks=[] if plant is plants[0] else [pytest.mark.long])
        for code, plants in FAULTS.items()
        for plant in plants
    ],
)
def test_a_fault_of_learn_is_named_where_rounding_differs(
    workshop: Workshop, reference: Trained, monkeypatch: Patch, code: str, plant: Any
) -> None:
    with monkeypatch.context() as patch, other_rounding():
        plant(patch)
        candidate = workshop.train(spec_of(workshop))
    judgement = judged(reference, candidate)
    assert judgement.verdict == "drift"
    assert judgement.causes[0].code == code
    assert not judgement.first_divergence.at.endswith(" input")


@pytest.mark.long
def test_variables_that_change_no_bit_excuse_no_fault(
    workshop: Workshop, reference: Trained, monkeypatch: Patch
) -> None:
    """The native operations of both trainings have the same bits, so that those of the curve are due."""
    variables = {
        "NCCL_DEBUG": "INFO", "KMP_BLOCKTIME": "0", "TORCH_LOGS": "", "MKL_VERBOSE": "0", "CUDA_HOME": "/opt/cuda",
        "PYTORCH_ALLOC_CONF": "backend:native", "NCCL_IB_TIMEOUT": "22", "OMP_DISPLAY_ENV": "true",
    }  # fmt: skip
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        honest = workshop.train(spec_of(workshop))
        no_decay(patch)
        candidate = workshop.train(spec_of(workshop))
    assert judged(reference, honest).verdict == "pass"
    judgement = judged(reference, candidate)
    assert judgement.verdict == "drift"
    assert judgement.findings[0].check == "learn.bits"


def test_only_rounding_passes_with_a_proof(workshop: Workshop, reference: Trained) -> None:
    with other_rounding():
        candidate = workshop.train(spec_of(workshop))
    judgement = judged(reference, candidate)
    assert judgement.verdict == "pass"
    assert [note.code for note in judgement.notes] == ["portable"], [said(n.text) for n in judgement.notes]
    assert "formulas identical at 2 checkpoints" in said(judgement.notes[0].text)


@pytest.mark.long
def test_moments_lost_at_a_resume_are_named(workshop: Workshop, reference: Trained, monkeypatch: Patch) -> None:
    spec, out = spec_of(workshop), workshop.out()

    def stop(_engine: Engine, step: int) -> None:
        if step == 7:
            raise StoppedError("the machine ends")

    load = learn_module.load_checkpoint

    def lose(folder: Any, made: Engine, identity: str) -> Any:
        progress = load(folder, made, identity)
        for state in made.optimizer.state.values():
            state["exp_avg"].zero_()
        return progress

    with other_rounding():
        with monkeypatch.context() as patch:
            before_steps(patch, stop)
            with pytest.raises(StoppedError):
                workshop.train(spec, out=out)
        with monkeypatch.context() as patch:
            patch.setattr(learn_module, "load_checkpoint", lose)
            lost = workshop.train(spec, out=out)
    judgement = judged(reference, lost)
    assert lost.record.evidence.learn.resumed_at == (4,)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "optimizer")
    assert "did not restore its moments" in said(judgement.causes[0].why)


def test_moments_that_a_checkpoint_loads_again_are_no_drift(
    workshop: Workshop, reference: Trained, monkeypatch: Patch
) -> None:
    """A file of tensors gives the optimizer's state in another order than the optimizer itself."""
    save = learn_module.save_checkpoint

    def reload(folder: Any, made: Engine, progress: Any, identity: str) -> None:
        save(folder, made, progress, identity)
        made.schedule.last_epoch = -1
        made.schedule.step()
        made.optimizer.state.clear()
        assert learn_module.load_checkpoint(folder, made, identity) is not None

    with monkeypatch.context() as patch:
        patch.setattr(learn_module, "save_checkpoint", reload)
        candidate = workshop.train(spec_of(workshop))
    assert candidate.record.evidence.learn.inconsistent == ()
    assert judged(reference, candidate).verdict == "pass"


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_windows_leave_a_curve_as_it_was(workshop: Workshop, monkeypatch: Patch, precision: str) -> None:
    """In half precision, with micro-batches: loss scale, generators, moments and modes are the training's again."""
    spec = spec_of(workshop, precision=precision).replace(optimizer={"accumulation_steps": 2})
    with_windows = workshop.train(spec).record.evidence.learn
    monkeypatch.setattr(windows.WindowRunner, "run", lambda *_: None)
    without = workshop.train(spec).record.evidence.learn
    assert [window.step for window in with_windows.portable.windows] == [0, 9]
    assert with_windows.portable.lost == ""
    assert with_windows.replace(portable=None) == without.replace(portable=None)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
def test_a_compiled_curve_has_the_masks_and_windows_of_a_plain_one(workshop: Workshop, reference: Trained) -> None:
    """The compiler of this test keeps the operations as they are, so that bits show what it was given."""
    graphs: list[Any] = []

    def keep(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend(keep)
    try:
        compiled = workshop.train(spec_of(workshop, compile=True))
    finally:
        torch.compiler.set_default_backend(before)
        torch.compiler.reset()
    ours, theirs = (trained.record.evidence.learn for trained in (reference, compiled))
    assert ours.losses == theirs.losses
    assert ours.last_weights == theirs.last_weights
    assert ours.evaluations == theirs.evaluations
    assert ours.portable == theirs.portable
    assert compiled.record.fingerprint.numerics["learn.compiler"] == "keep"
    # Ten steps with new masks need no graph of their own: a step that is a constant would be compiled ten times.
    assert 0 < len(graphs) < 5 * 10


def test_a_window_whose_gradients_are_not_finite_says_so(workshop: Workshop, monkeypatch: Patch) -> None:
    """A formula that divides by zero on a window's few rows ends no training, and equals nothing."""

    def loss(_self: Any, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return outputs.loss * (1.0 if len(labels) == RECIPE["batch_size"] else float("nan"))

    monkeypatch.setattr(engine.Observer, "loss", loss)
    found = workshop.train(spec_of(workshop)).record.evidence.learn.portable.windows
    assert found
    assert {digest for window in found for _, digest in window.gradients} == {None}
