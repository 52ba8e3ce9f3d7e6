"""RunSpecs from workloads: sizes, checkpoints, and contradictions."""

from __future__ import annotations

import json

import pytest

from plumbline.data.datasets import architecture, make_spec
from plumbline.data.datasets.spec import SIZES, dataset_source
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from tests.unit import suites

WEIGHTS = "ab" * 32
CONFIG = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 128, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    "pad_token_id": 0, "classifier_dropout": None,
}  # fmt: skip


def bring_tokenizer(built, folder):
    """Copy the dataset's tokenizer into a checkpoint's folder."""
    (folder / "tokenizer.json").write_bytes((built[0] / built[1].tokenizer.key).read_bytes())


def suite_of(**workload):
    return suites.suite_of("a", recipe={"data": "reviews", "seed": 7, **workload})


@pytest.mark.parametrize(
    ("size", "layers", "width", "heads"), [("tiny", 2, 128, 2), ("base", 12, 768, 12), ("large", 24, 1024, 16)]
)
def test_sizes_are_bert_s_own(built, size, layers, width, heads):
    spec = make_spec(suite_of(model=size), "w", built[1], WEIGHTS)
    model = spec.model
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (layers, width, heads)
    assert model.intermediate_size == 4 * width
    assert model.vocab_size == built[1].vocab_size
    assert model.num_labels == 2
    assert model.weights_key == f"weights/{WEIGHTS}.safetensors"
    assert spec.data.manifest_sha256 == built[1].digest


def test_every_size_makes_a_spec_of_its_own(built):
    assert len({make_spec(suite_of(model=size), "w", built[1], WEIGHTS).digest for size in SIZES}) == len(SIZES)


def test_long_sequences_get_the_positions_they_need(built):
    assert make_spec(suite_of(sequence_length=1024), "w", built[1], WEIGHTS).model.max_position_embeddings == 1024


def test_language_modelling_has_no_labels(built):
    assert make_spec(suite_of(task="masked-lm"), "w", built[1], WEIGHTS).model.num_labels is None


def test_a_checkpoint_brings_its_own_architecture(built, tmp_path):
    config = {**CONFIG, "vocab_size": built[1].vocab_size}
    (tmp_path / "config.json").write_text(json.dumps(config))
    bring_tokenizer(built, tmp_path)
    suite = suite_of(model=str(tmp_path))
    assert architecture(suite.workloads["w"], built[1])["checkpoint"] == str(tmp_path)
    model = make_spec(suite, "w", built[1], WEIGHTS).model
    assert (model.hidden_size, model.num_attention_heads, model.intermediate_size) == (64, 4, 96)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"vocab_size": 30522},
            InvalidInputError,
            "vocab_size: is 30522, and the tokenizer of the dataset 'reviews' has",
        ),
        ({"model_type": None}, ConfigurationError, "model_type: is missing .hint: name its family, such as bert"),
        ({"model_type": "t5", "is_encoder_decoder": True}, ConfigurationError, "model_type: is a decoder"),
        ({"hidden_size": None}, ConfigurationError, "hidden_size: is missing"),
        ({"pad_token_id": 3}, InvalidInputError, "pad_token_id: is 3, and the tokenizer pads with 0"),
        ({"position_embedding_type": "relative_key"}, ConfigurationError, "position_embedding_type: only `absolute`"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_its_key(built, tmp_path, change, error, message):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": built[1].vocab_size, **change}))
    bring_tokenizer(built, tmp_path)
    with pytest.raises(error, match=message):
        make_spec(suite_of(model=str(tmp_path)), "w", built[1], WEIGHTS)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"model": "gigantic"}, "model: is neither a size nor a checkpoint's folder"),
        ({"data": "news"}, "trains on 'news', not on 'reviews'"),
        ({"batch_size": 9, "optimizer": {"accumulation_steps": 2}}, "does not divide batch_size"),
    ],
)
def test_what_does_not_fit_together_is_one_line(built, workload, message):
    with pytest.raises(ConfigurationError, match=message):
        make_spec(suite_of(**workload), "w", built[1], WEIGHTS)


def test_an_unknown_workload_names_the_known_ones(built):
    with pytest.raises(ConfigurationError, match=r"the workload 'x' does not exist \(hint: one of w\)"):
        make_spec(suite_of(), "x", built[1], WEIGHTS)


def test_a_checkpoint_with_another_tokenizer_of_the_same_size_is_refused(built, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": built[1].vocab_size}))
    with pytest.raises(InvalidInputError, match=r"contains no tokenizer\.json"):
        make_spec(suite_of(model=str(tmp_path)), "w", built[1], WEIGHTS)
    content = (built[0] / built[1].tokenizer.key).read_text()
    (tmp_path / "tokenizer.json").write_text(content.replace('"lowercase": true', '"lowercase": false'))
    with pytest.raises(InvalidInputError, match="is not the tokenizer of the dataset 'reviews'"):
        make_spec(suite_of(model=str(tmp_path)), "w", built[1], WEIGHTS)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(InvalidInputError, match=r"config\.json: not JSON"):
        make_spec(suite_of(model=str(tmp_path)), "w", built[1], WEIGHTS)


def test_a_checkpoint_brings_its_own_tokenizer_to_a_dataset_that_names_none(built, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    bring_tokenizer(built, tmp_path)
    suite = suite_of(model=str(tmp_path)).replace(datasets={"reviews": {"grammar_seed": 1}})
    assert dataset_source(suite, "reviews").tokenizer == str(tmp_path)
    both = suite.replace(
        workloads={**suite.to_json()["workloads"], "v": {**suite.to_json()["workloads"]["w"], "model": "tiny"}}
    )
    with pytest.raises(ConfigurationError, match="the workloads w, v need different tokenizers"):
        dataset_source(both, "reviews")
    with pytest.raises(ConfigurationError, match="did you mean `reviews`"):
        dataset_source(suite, "review")


@pytest.mark.parametrize(
    ("model", "hint"), [("larg", "did you mean `large`"), ("acme/model", "a Hub model NAME@REVISION")]
)
def test_a_misspelt_size_is_answered_with_a_suggestion(built, model, hint):
    with pytest.raises(ConfigurationError, match=hint):
        make_spec(suite_of(model=model), "w", built[1], WEIGHTS)
