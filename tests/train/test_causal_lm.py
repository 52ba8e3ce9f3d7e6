"""Causal language modelling with a tiny GPT-2: its loss is its definition's, and planted faults are drifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.loss import loss_utils
from transformers.models.gpt2 import modeling_gpt2

from plumbline.judge import compare
from plumbline.records import load_record
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.verdict import Judgement
from plumbline.train.selfcheck import first_step
from plumbline.train.tasks import training_task
from plumbline.train.weights import make_weights
from tests.train.conftest import MODEL, Trained, Workshop

PROBE = {"steps": 2, "evaluation_rows": 8, "portable_steps": 1}
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("causal"), "causal-lm")


@pytest.fixture(scope="module")
def trained(causal: Workshop) -> Trained:
    return causal.train(causal.spec(probe=PROBE, optimizer={"accumulation_steps": 2}))


def unshifted(patch: Patch) -> None:
    """Compare each token's logits with the token itself."""
    plain = nn.functional.cross_entropy

    def loss(logits: Any, labels: Any, vocab_size: int, **_: Any) -> Any:
        return plain(logits.float().view(-1, vocab_size), labels.view(-1))

    patch.setitem(loss_utils.LOSS_MAPPING, "ForCausalLM", loss)


def not_causal(patch: Patch) -> None:
    """Let each token attend to later ones, too."""

    def mask(**named: Any) -> Any:
        named.pop("position_ids", None)
        named.pop("past_key_values", None)
        return modeling_gpt2.create_bidirectional_mask(**named)

    patch.setattr(modeling_gpt2, "create_causal_mask", mask)


def faulty(causal: Workshop, plant: Any) -> Trained:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        return causal.train(causal.spec(probe=PROBE, optimizer={"accumulation_steps": 2}))


def judged(reference: Trained, candidate: Trained) -> Judgement:
    return compare(load_record(reference.folder), load_record(candidate.folder))


def test_the_loss_is_that_of_the_next_token(trained: Trained) -> None:
    batches = trained.arrays("batches")
    real = batches["attention_mask"] == 1
    np.testing.assert_array_equal(batches["labels"], np.where(real, batches["input_ids"], -100))
    for step in trained.probe.steps_of():
        assert step.loss == pytest.approx(step.defined_loss, rel=1e-6)
    evaluation = trained.probe.evaluation
    assert 0 <= evaluation.accuracy <= 1
    assert trained.arrays("evaluation")["logits"].shape == (8, 1)
    assert trained.probe.portable.lost == ""


def test_an_equal_training_passes(trained: Trained, causal: Workshop) -> None:
    again = causal.train(causal.spec(probe=PROBE, optimizer={"accumulation_steps": 2}))
    assert judged(trained, again).verdict == "pass"


def test_unshifted_labels_are_a_drift_of_the_loss_also_where_both_sides_have_them(
    trained: Trained, causal: Workshop
) -> None:
    bad = faulty(causal, unshifted)
    assert abs(bad.probe.at(0).loss - bad.probe.at(0).defined_loss) > 1e-3
    for reference in (trained, bad):
        judgement = judged(reference, bad)
        assert judgement.verdict == "drift"
        assert judgement.causes[0].code == "loss"
        assert (judgement.first_divergence.stage, judgement.first_divergence.step) == ("loss", 0)


def test_attention_to_later_tokens_is_named_at_its_module(trained: Trained, causal: Workshop) -> None:
    judgement = judged(trained, faulty(causal, not_causal))
    assert judgement.verdict == "drift"
    assert judgement.causes[0].code == "operator"
    assert judgement.first_divergence.at.startswith("transformer.h.0.attn")


@pytest.mark.parametrize(("name", "shift", "num_terms"), [("causal-lm", 1, 6), ("masked-lm", 0, 8)])
def test_definitions_agree_with_those_by_hand(name: str, shift: int, num_terms: int) -> None:
    task, rng = training_task(name), np.random.default_rng(1)
    logits, labels = rng.normal(size=(3, 5, 7)), rng.integers(0, 7, (3, 5))
    labels[1, 3:], labels[2] = -100, -100
    terms = [
        torch.logsumexp(torch.tensor(logits[row, at]), 0).item() - logits[row, at, labels[row, at + shift]]
        for row in range(3) for at in range(5 - shift) if labels[row, at + shift] != -100
    ]  # fmt: skip
    assert task.num_terms(labels) == task.num_terms(torch.tensor(labels)) == len(terms) == num_terms
    assert task.reference_loss(logits, labels) == pytest.approx(np.mean(terms))
    assert task.defined_loss(torch.tensor(logits), torch.tensor(labels)).item() == pytest.approx(np.mean(terms))
    best = (logits[:, : 5 - shift].argmax(-1) == labels[:, shift:]) & (labels[:, shift:] != -100)
    assert task.answers(logits, labels).predictions.tolist() == best.sum(1).tolist()
    recounted = task.recount(torch.tensor(logits), torch.tensor(labels), torch.tensor(0.0))
    assert recounted == (num_terms, pytest.approx(np.sum(terms)), int(best.sum()))


def test_a_model_that_reads_later_tokens_is_refused(tmp_path: Any) -> None:
    described = {**MODEL, "num_labels": None, "vocab_size": 64, "task": "causal-lm"}
    with pytest.raises(ConfigurationError, match="needs attention to earlier tokens alone"):
        make_weights(described, 1, tmp_path / "w.safetensors")


def test_the_machine_is_checked_by_the_shipped_training_of_labelled_tokens() -> None:
    """Without that mapping a round of any task that is not shipped with digests ends with a `KeyError`."""
    assert first_step(torch.device("cpu"), "causal-lm").verdict == "pass"
