"""Checkpoints of each family: trained, compared, and a fault named at its module."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch.nn import functional

from plumbline.cli.main import main
from plumbline.night.prepare import prepare
from plumbline.schema.errors import PlumblineError
from plumbline.schema.record import read_record
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import parse_suite
from plumbline.schema.suite_file import with_tuples
from plumbline.train import probe, speed
from plumbline.train.job import TrainJob, run_job
from plumbline.train.models.families import check_map
from plumbline.train.models.model import build_model
from plumbline.train.portable import probe_windows
from plumbline.train.weights import make_weights
from tests.train.checkpoints import ACTIVATIONS, make_checkpoint, write_reviews

PROBE = {"steps": 3, "evaluation_rows": 8, "portable_steps": 1}
LEARN = {"steps": 3, "evaluate_every": 3, "checkpoint_every": 3, "evaluation_rows": 8}


def suite_of(root, model, *, task="sequence-classification", dataset=None, **parts):
    """Return a suite with one workload that trains `model` on the reviews."""
    rows = write_reviews(root / "rows.csv")
    return parse_suite(
        with_tuples({
            "name": "families", "store": f"file://{root}/central", "reference": "here",
            "datasets": {"rows": {"path": str(rows), **(dataset or {})}},
            "workloads": {"w": {
                "task": task, "model": str(model), "data": "rows", "seed": 1, "batch_size": 8, "sequence_length": 24,
                "probe": PROBE, **parts,
            }},
            "platforms": {"here": {"work_pool": "p", "data": f"file://{root}/data", "outbox": f"file://{root}/outbox"}},
        }),
        where="suite",
    )  # fmt: skip


def prepared(root, suite, *, apart=False):
    """Prepare the suite's workload; `apart` makes the weights in a separate process, as the command does.

    `test_pieces.py` checks that both make the same.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not apart:
            patch.setattr("plumbline.night.prepare.make_weights", make_weights)
        return prepare(suite, root / "build", lambda _: None)["w"]


@pytest.fixture(scope="module")
def family_of(tmp_path_factory) -> Callable[..., tuple[Path, RunSpec]]:
    """Return a family's prepared folder and spec, made once."""
    made: dict[tuple[str, str], tuple[Path, RunSpec]] = {}

    def get(family, task="sequence-classification"):
        if (family, task) not in made:
            root = tmp_path_factory.mktemp(family)
            suite = suite_of(root, make_checkpoint(family, root / "c"), task=task)
            made[family, task] = root, prepared(root, suite)
        return made[family, task]

    return get


def train(root, spec, out):
    name = out.name
    job = TrainJob(spec=spec, out=out, data=f"file://{root}/data", cache=root / "cache", platform=name, record_id=name)
    run_job(job, threading.Event())
    return out


@contextlib.contextmanager
def faulty(monkeypatch, name):
    """Replace one GELU by its sigmoid approximation, with unchanged class and settings."""

    def build(*arguments, **options):
        model = build_model(*arguments, **options)
        model.get_submodule(name).forward = lambda values: values * torch.sigmoid(1.702 * values)
        return model

    with monkeypatch.context() as patch:
        for module in (probe, probe_windows):
            patch.setattr(module, "build_model", build)
        yield


def compared(capsys, reference, candidate):
    capsys.readouterr()
    code = main(["compare", str(reference), str(candidate), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.first(1)
@pytest.mark.parametrize("family", ["distilbert", "modernbert", "bert", "roberta", "electra"])
def test_a_checkpoint_is_trained_compared_and_a_planted_fault_is_named(
    family_of, tmp_path, monkeypatch, capsys, family
):
    root, spec = family_of(family)
    assert spec.model.family == family
    assert spec.data.class_names == ("negative", "positive")
    reference = train(root, spec, tmp_path / "reference")
    code, answer = compared(capsys, reference, train(root, spec, tmp_path / "again"))
    assert (code, answer["verdict"]) == (0, "pass"), [item for item in answer["findings"] if item["outcome"] != "pass"]
    with faulty(monkeypatch, ACTIVATIONS[family]):
        bad = train(root, spec, tmp_path / "bad")
    code, answer = compared(capsys, reference, bad)
    assert (code, answer["verdict"]) == (1, "drift")
    assert answer["first_divergence"]["at"] == ACTIVATIONS[family]
    assert answer["causes"][0]["code"] == "operator"


@pytest.mark.long
@pytest.mark.parametrize("family", ["modernbert", "distilbert", "roberta"])
def test_both_tasks_and_the_learn_part_run_on_every_family(family_of, tmp_path, family):
    root, spec = family_of(family, "masked-lm")
    record = read_record(train(root, spec.replace(learn=LEARN), tmp_path / "r"))
    assert record.exit.status == "completed"
    assert all(step.loss is not None for step in record.evidence.probe.steps_of())
    assert len(record.evidence.learn.evaluations) == 1


@pytest.mark.long
@pytest.mark.parametrize(("attention", "padding"), [("sdpa", "fixed"), ("eager", "longest")])
def test_modernbert_at_production_settings_is_the_plain_model(family_of, tmp_path, monkeypatch, attention, padding):
    """Its eager attention has no form in fp64, and no two kernels agree on what padding becomes."""
    monkeypatch.setattr(speed, "LONGEST_WARMUP", 16)
    root, spec = family_of("modernbert")
    asked = {"steps": 10, "precision": "bf16", "attention": attention, "padding": padding}
    found = read_record(train(root, spec.replace(probe=None, speed=asked), tmp_path / "r")).evidence.speed
    assert (found.portable.lost, found.production.lost) == ("", "")
    formula = dict(found.production.formula)
    assert {f"forward {ACTIVATIONS['modernbert']}", "forward logits", "loss loss"} <= formula.keys()
    assert {name: error for name, error in formula.items() if error is None or error > 1e-12} == {}


@pytest.mark.long
@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert"])
def test_dropout_masks_of_every_family_depend_on_the_seed_alone(family_of, tmp_path, family):
    root, spec = family_of(family)

    def losses(name, dropout):
        part = spec.replace(probe=None, learn={**LEARN, "dropout": dropout})
        return read_record(train(root, part, tmp_path / name)).evidence.learn.losses

    one = losses("one", 0.3)
    assert losses("two", 0.3) == one
    assert losses("none", 0.0) != one


@pytest.mark.long
def test_pairs_of_sentences_are_trained_with_both_texts(tmp_path):
    rows = tmp_path / "pairs.jsonl"
    text = "".join(
        json.dumps({"sentence1": "the lamp is great", "sentence2": f"I {verb} it", "label": label}) + "\n"
        for verb, label in (("keep", "yes"), ("return", "no")) * 30
    )
    rows.write_text(text)
    suite = suite_of(tmp_path, "tiny", dataset={"path": str(rows), "vocab_size": 100}, learn=LEARN)
    folder = train(tmp_path, prepared(tmp_path, suite), tmp_path / "r")
    record = read_record(folder)
    assert record.exit.status == "completed"
    batches = load_file(folder / "batches.safetensors")
    # The first texts are all alike: only the second ones, in their own segment, tell rows apart.
    assert {len(set(map(bytes, step))) for step in batches["input_ids"]} == {2}
    assert batches["token_type_ids"].max() == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2", "n_embd": 8}, "is missing (hint: gpt2 is neither of the BERT family nor GPT-2)"),
        ({"model_type": "no-such-model"}, "cannot build the model"),
        ({"is_decoder": True}, "is a decoder"),
    ],
)
def test_a_checkpoint_that_is_no_encoder_of_the_family_is_one_line(tmp_path, change, message):
    folder = make_checkpoint("distilbert", tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    if change.get("model_type") == "gpt2":
        config = {}
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(PlumblineError) as caught:
        prepared(tmp_path, suite_of(tmp_path, folder), apart=True)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_whose_modules_cannot_be_mapped_is_one_line():
    """A module whose weights are read without calling it would be a hole in the map of the probe."""

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4)

        def forward(self, input_ids=None, attention_mask=None, labels=None):  # noqa: ARG002
            return functional.linear(self.first(input_ids), self.second.weight)

    with pytest.raises(PlumblineError, match="'second' computes without being called"):
        check_map(Hidden(), "hidden")


def test_a_family_that_looks_for_padding_without_a_mask_is_mapped():
    """Until transformers 4.57 every such family did; the ids of a model without memory have no values."""

    class Looking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Embedding(4, 4)

        def forward(self, input_ids, attention_mask=None, labels=None):  # noqa: ARG002
            if attention_mask is None and 1 in input_ids:
                raise AssertionError
            return self.inner(input_ids)

    check_map(Looking().to("meta"), "looking")


@pytest.mark.long
def test_a_checkpoint_with_the_tokenizer_of_another_one_is_refused(tmp_path):
    own, other = make_checkpoint("bert", tmp_path / "own"), make_checkpoint("modernbert", tmp_path / "other")
    suite = suite_of(tmp_path, own, dataset={"tokenizer": str(other)})
    with pytest.raises(
        PlumblineError, match="is not the tokenizer of the dataset 'rows': a checkpoint is trained with"
    ):
        prepared(tmp_path, suite)


@pytest.mark.long
def test_weights_that_a_checkpoint_lacks_below_its_head_are_refused(tmp_path):
    folder = make_checkpoint("roberta", tmp_path / "c")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(PlumblineError, match=r"roberta\.encoder\.layer\.3\..*is missing in the checkpoint"):
        prepared(tmp_path, suite_of(tmp_path, folder))


@pytest.mark.long
def test_the_checkpoint_of_a_compiled_model_gives_the_same_weights(tmp_path):
    """`save_pretrained` of a compiled model writes `_orig_mod.` before each name."""
    folder = make_checkpoint("bert", tmp_path / "c")
    suite = suite_of(tmp_path, folder)
    plain = prepared(tmp_path / "plain", suite)
    tensors = load_file(folder / "model.safetensors")
    save_file({f"_orig_mod.{name}": values for name, values in tensors.items()}, folder / "model.safetensors")
    compiled = prepared(tmp_path / "compiled", suite)
    assert compiled.model.weights_sha256 == plain.model.weights_sha256
