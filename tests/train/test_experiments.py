"""Replays that restore the reference's value at one rung, and captures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import plumbline.train.probe as probe_module
from plumbline.schema.errors import InvalidInputError
from plumbline.train import batches as batches_module
from plumbline.train import engine
from plumbline.train.watch.calls import with_first_tensor
from tests.train.conftest import Trained, Workshop, differing_steps, tap_errors

NOTHING = (
    {"stage": "batch", "source": "batches.safetensors"},
    {"stage": "weights", "source": "weights.safetensors"},
    {"stage": "rng", "source": "state.safetensors"},
    {"stage": "settings"},
    {"stage": "schedule"},
    {"stage": "evaluation"},
)


def files(workshop: Workshop, baseline: Trained) -> dict[str, object]:
    result = {name: baseline.folder / name for name in ("batches.safetensors", "state.safetensors")}
    return {**result, "weights.safetensors": workshop.weights}


def equal(trained: Trained, other: Trained) -> bool:
    return other.probe.steps_of() == trained.probe.steps_of(other.probe.num_steps)


@pytest.mark.parametrize("replay", NOTHING, ids=lambda replay: replay["stage"])
def test_putting_back_what_is_there_changes_nothing(workshop: Workshop, baseline: Trained, replay: dict) -> None:
    same = workshop.experiment(workshop.spec(), {"replays": [replay]}, files(workshop, baseline))
    assert equal(baseline, same)
    assert same.probe.evaluation.predictions_sha256 == baseline.probe.evaluation.predictions_sha256
    assert same.record.experiment.replays[0].stage == replay["stage"]
    assert same.record.spec_sha256 == baseline.record.spec_sha256


def test_a_shorter_run_is_the_start_of_the_longer_one(workshop: Workshop, baseline: Trained) -> None:
    short = workshop.experiment(workshop.spec(), {"steps": 2})
    assert short.probe.num_steps == 2
    assert equal(baseline, short)
    assert short.record.evidence.data == baseline.record.evidence.data


def test_captured_tensors_put_back_undo_any_fault_above_them(workshop: Workshop, baseline: Trained) -> None:
    spec = workshop.spec()
    captures = [
        {"stage": "forward", "names": ["bert.encoder.layer.0.output"], "step": 0},
        {"stage": "gradient", "names": [], "step": 0},
        {"stage": "clipped", "names": ["classifier.weight"], "step": 1},
        {"stage": "weights", "names": [], "step": 1},
    ]
    kept = workshop.experiment(spec, {"captures": captures, "steps": 2})
    tensors = kept.arrays("capture")
    assert "forward/0/bert.encoder.layer.0.output" in tensors
    assert "gradient/0/classifier.weight" in tensors
    assert [name for name in tensors if name.startswith("clipped")] == ["clipped/1/classifier.weight"]
    assert tensors["classifier.weight"].shape == (2, 64)
    capture = {"capture.safetensors": kept.folder / "capture.safetensors"}
    replays = [
        {"stage": rung, "step": step, "source": "capture.safetensors"}
        for rung, step in (("forward", 0), ("gradient", 0), ("clipped", 1), ("weights", 1))
    ]
    assert equal(baseline, workshop.experiment(spec, {"replays": replays, "steps": 2}, capture))


@pytest.fixture
def wrong_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.functional.gelu
    monkeypatch.setattr(
        "transformers.activations.GELUActivation.forward", lambda _self, values: plain(values, approximate="tanh")
    )


@pytest.mark.usefixtures("wrong_activation")
def test_imposed_outputs_hide_the_module_that_computes_something_else(workshop: Workshop, baseline: Trained) -> None:
    spec = workshop.spec()
    faulty = workshop.experiment(spec, {"steps": 1})
    errors = tap_errors(baseline, faulty)
    assert errors[0, "forward", "bert.encoder.layer.0.intermediate.intermediate_act_fn"] > 1e-5
    # The right outputs, as a run elsewhere would have kept them.
    with pytest.MonkeyPatch.context() as right:
        plain = torch.nn.functional.gelu
        right.setattr("transformers.activations.GELUActivation.forward", lambda _self, values: plain(values))
        kept = workshop.experiment(spec, {"steps": 1, "captures": [{"stage": "forward", "names": [], "step": 0}]})
    names = tuple(f"bert.encoder.layer.{layer}.intermediate.intermediate_act_fn" for layer in (0, 1))
    replay = {"stage": "forward", "step": 0, "fields": names, "source": "capture.safetensors"}
    capture = {"capture.safetensors": kept.folder / "capture.safetensors"}
    healed = workshop.experiment(spec, {"steps": 1, "replays": [replay]}, capture)
    assert max(error for key, error in tap_errors(baseline, healed).items() if key[1] == "forward") == 0
    assert healed.probe.at(0).logits == baseline.probe.at(0).logits
    # The way back still goes through the wrong function: only its outputs were put back.
    assert healed.probe.at(0).gradients != baseline.probe.at(0).gradients


def another_order(patch: pytest.MonkeyPatch) -> None:
    plain = batches_module.TrainingRows.__getitems__
    patch.setattr(batches_module.TrainingRows, "__getitems__", lambda self, positions: plain(self, positions[::-1]))


def other_weights(patch: pytest.MonkeyPatch) -> None:
    plain = probe_module.load_weights

    def nudged(model, weights):
        plain(model, weights)
        with torch.no_grad():
            model.classifier.weight[0, 0] += 1e-4

    patch.setattr(probe_module, "load_weights", nudged)


def behind_each_update(change: Callable[[], object]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a fault of a library that the optimizer calls."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        plain = torch.optim.AdamW.step
        patch.setattr(
            torch.optim.AdamW, "step", lambda self, *given, **named: (change(), plain(self, *given, **named))[1]
        )

    return plant


def draws() -> None:
    torch.rand(3)
    np.random.random()  # noqa: NPY002 - the generator that libraries draw from


def another_schedule(patch: pytest.MonkeyPatch) -> None:
    plain = torch.optim.lr_scheduler.LambdaLR
    patch.setattr(
        torch.optim.lr_scheduler, "LambdaLR", lambda optimizer, rule: plain(optimizer, lambda step: rule(step + 1))
    )


FAULTS = {
    "batch": (another_order, "batch", {"source": "batches.safetensors"}),
    "weights": (other_weights, "weights", {"source": "weights.safetensors", "step": 0}),
    "settings": (behind_each_update(lambda: torch.set_autocast_enabled("cpu", True)), "logits_dtype", {}),
    "rng": (behind_each_update(draws), "generators", {"source": "state.safetensors"}),
    "schedule": (another_schedule, "learning_rate", {}),
}
"""By rung: a fault, what it changes, and where the reference's value is."""


@pytest.mark.parametrize("stage", FAULTS)
def test_a_value_put_back_undoes_a_fault_of_its_rung(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    plant, field, place = FAULTS[stage]
    plant(monkeypatch)
    spec, given = workshop.spec(), files(workshop, baseline)
    try:
        differing = differing_steps(baseline, workshop.experiment(spec, {}), field)
        healed = workshop.experiment(spec, {"replays": [{"stage": stage, **place}]}, given)
    finally:
        torch.set_autocast_enabled("cpu", False)
    assert differing
    assert stage != "rng" or differing == [1, 2, 3, 4, 5]
    assert equal(baseline, healed)


def test_of_a_batch_single_fields_may_be_put_back(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_order(monkeypatch)
    only = {"stage": "batch", "source": "batches.safetensors", "fields": ["labels"]}
    given = files(workshop, baseline)
    assert differing_steps(baseline, workshop.experiment(workshop.spec(), {"replays": [only]}, given), "batch")


def loss_errors(trained: Trained, other: Trained) -> float:
    return max(
        abs(a.loss - b.loss) / a.loss for a, b in zip(trained.probe.steps_of(), other.probe.steps_of(), strict=True)
    )


def test_the_loss_by_definition_undoes_another_loss(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        torch.nn.functional, "cross_entropy", lambda *args, **given: plain(*args, **{**given, "label_smoothing": 0.1})
    )
    spec = workshop.spec()
    faulty = workshop.experiment(spec, {})
    assert loss_errors(baseline, faulty) > 1e-4
    assert abs(faulty.probe.at(0).defined_loss - faulty.probe.at(0).loss) > 1e-6
    healed = workshop.experiment(spec, {"replays": [{"stage": "loss"}]})
    assert loss_errors(baseline, healed) < 1e-5


def test_the_update_by_definition_undoes_another_optimizer(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *args, **given: plain(*args, **{**given, "betas": (0.5, 0.999)}))
    spec = workshop.spec()
    assert loss_errors(baseline, workshop.experiment(spec, {})) > 1e-6
    errors = tap_errors(baseline, workshop.experiment(spec, {"replays": [{"stage": "optimizer"}]}))
    weights = [error for key, error in errors.items() if key[1] == "optimizer" and "key.bias" not in key[2]]
    assert max(weights) < 1e-4


def test_the_update_by_definition_clears_gradients_that_the_optimizer_does_not_know(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer without the classifier leaves its gradients, to which each step adds."""
    make = engine.make_optimizer

    def made(model, spec, **rest):
        optimizer = make(model, spec, **rest)
        head = {id(value) for value in model.classifier.parameters()}
        for group in optimizer.param_groups:
            group["params"] = [value for value in group["params"] if id(value) not in head]
        return optimizer

    monkeypatch.setattr(engine, "make_optimizer", made)
    restored = workshop.experiment(workshop.spec(), {"replays": [{"stage": "optimizer"}]})
    norms = [[step.gradient_norm for step in run.probe.steps_of()] for run in (baseline, restored)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


def test_evaluation_by_definition_undoes_one_in_training_mode(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.PreTrainedModel.eval", lambda self: self)
    spec = workshop.spec()
    assert workshop.experiment(spec, {}).probe.evaluation.training_mode
    healed = workshop.experiment(spec, {"replays": [{"stage": "evaluation"}]})
    assert healed.probe.evaluation.predictions_sha256 == baseline.probe.evaluation.predictions_sha256
    assert not healed.probe.evaluation.training_mode


def test_a_precision_can_be_asked_for(workshop: Workshop) -> None:
    result = workshop.experiment(workshop.spec(), {"precision": "fp64", "steps": 1})
    assert result.probe.at(0).logits_dtype == "float64"


def test_portable_windows_can_be_asked_for(workshop: Workshop, baseline: Trained) -> None:
    assert workshop.experiment(workshop.spec(), {"steps": 1}).probe.portable is None
    asked = workshop.experiment(workshop.spec(), {"steps": 1, "portable": True})
    assert asked.probe.portable is not None
    assert asked.probe.portable == baseline.probe.portable


@pytest.mark.parametrize(
    ("body", "tensors", "words"),
    [
        ({"replays": [{"stage": "batch"}]}, {}, "source"),
        ({"replays": [{"stage": "batch", "source": "no.safetensors"}]}, {}, "not in the bundle"),
        ({"replays": [{"stage": "rng", "source": "t.safetensors"}]}, {"rng/0": np.zeros(7, np.uint8)}, "truncated"),
        ({"replays": [{"stage": "gradient", "step": 0, "source": "t.safetensors"}]},
         {"gradient/0/classifier.weight": np.zeros((3, 3), np.float32)}, "shape"),
        ({"replays": [{"stage": "forward", "step": 0, "fields": ["nowhere"], "source": "t.safetensors"}]},
         {"x": np.zeros(1)}, "forward/0/nowhere"),
        ({"replays": [{"stage": "batch", "source": "t.safetensors"}]}, {"input_ids": np.zeros((1, 8, 16))}, "row_ids"),
    ],
)  # fmt: skip
def test_a_bundle_that_cannot_be_imposed_is_refused(
    workshop: Workshop, tmp_path, body: dict, tensors: dict, words: str
) -> None:
    given = {}
    if tensors:
        save_file(tensors, tmp_path / "t.safetensors")
        given = {"t.safetensors": tmp_path / "t.safetensors"}
    with pytest.raises(InvalidInputError) as caught:
        workshop.experiment(workshop.spec(), body, given)
    assert words in str(caught.value)


def test_more_than_the_bound_is_not_captured(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.train.replay.MAX_CAPTURE_BYTES", 1000)
    with pytest.raises(InvalidInputError, match="more than 1000 bytes"):
        workshop.experiment(workshop.spec(), {"captures": [{"stage": "gradient", "names": [], "step": 0}]})


def test_replacing_the_first_tensor_keeps_the_rest() -> None:
    first, second = torch.ones(2), torch.zeros(2)
    assert with_first_tensor((None, (first, second)), second)[1][0] is second
    with pytest.raises(TypeError):
        with_first_tensor("words", first)
