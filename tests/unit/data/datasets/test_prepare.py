"""Reuse of earlier builds, and rebuilding of replaced inputs."""

from __future__ import annotations

import json

from plumbline.data.datasets import build_dataset
from plumbline.night import prepare as prepared
from plumbline.schema.suite import DatasetSource
from tests.unit import suites


def suite_of(tmp_path, model="tiny", **source):
    rows = {"grammar_seed": 1, "train_rows": 64, "evaluation_rows": 16, "vocab_size": 400, **source}
    return suites.suite_of(
        "aws", store=f"file://{tmp_path}/c", datasets={"r": rows}, recipe={"model": model, "data": "r"},
        platform={"data": f"file://{tmp_path}/d", "outbox": f"file://{tmp_path}/o"},
    )  # fmt: skip


def test_a_tokenizer_that_was_trained_again_in_place_is_used(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    sizes = []
    for turn, (vocab_size, tokenizer) in enumerate([(300, folder), (400, folder), (300, folder / "tokenizer.json")]):
        trained = tmp_path / f"trained-{turn}"
        source = DatasetSource(grammar_seed=1, train_rows=64, evaluation_rows=16, vocab_size=vocab_size)
        build_dataset(source, "r", "sequence-classification", trained)
        (folder / "tokenizer.json").write_bytes(next(trained.rglob("tokenizer*.json")).read_bytes())
        suite = suite_of(tmp_path, tokenizer=str(tokenizer))
        said = []
        _, manifest = prepared._dataset(suite, suite.workloads["w"].data, tmp_path / "built", said.append)
        sizes.append(manifest.vocab_size)
        assert prepared._dataset(suite, suite.workloads["w"].data, tmp_path / "built", said.append)[1] == manifest
        assert said == ["building the dataset r"]
    assert sizes[0] == sizes[2] < sizes[1]


def test_a_checkpoint_in_shards_that_was_saved_again_in_place_gives_new_weights(tmp_path, built, monkeypatch):
    dataset, manifest = built
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((dataset / manifest.tokenizer.key).read_bytes())
    config = {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
        "intermediate_size": 128, "max_position_embeddings": 128, "vocab_size": manifest.vocab_size,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", names, strict=True))})
    )

    def make(_model, _seed, path):
        # Reading them is the trainer's, which has torch; here it matters when it is asked.
        path.write_bytes(b"".join((folder / name).read_bytes() for name in names))
        return ""

    monkeypatch.setattr(prepared, "make_weights", make)
    suite = suite_of(tmp_path, str(folder))
    made = []
    for last in (b"first", b"second", b"second"):
        for name in names:
            (folder / name).write_bytes(last)
        path, _ = prepared._weights(suite.workloads["w"], manifest, tmp_path / "built", lambda _: None)
        made.append(path.read_bytes())
    assert made == [b"firstfirst", b"secondsecond", b"secondsecond"]
