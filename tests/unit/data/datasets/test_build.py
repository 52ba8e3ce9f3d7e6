"""Reproducible builds of datasets, with correct manifests."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from plumbline.data.datasets import build_dataset, read_manifest
from plumbline.data.datasets.tokenizer import read_tokenizer, train_tokenizer
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.suite import DatasetSource

BUILD = """
import sys
from pathlib import Path
from plumbline.data.datasets import build_dataset
from plumbline.schema.suite import DatasetSource
source = DatasetSource(grammar_seed=7, train_rows=200, evaluation_rows=40, rows_per_shard=64, vocab_size=400)
print(build_dataset(source, "reviews", "sequence-classification", Path(sys.argv[1])).digest)
"""


def test_another_process_with_another_hash_seed_builds_the_same_bytes(built, tmp_path):
    folder, manifest = built
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.strip() == manifest.digest
    for file in manifest.files:
        assert (tmp_path / file.key).read_bytes() == (folder / file.key).read_bytes()


def test_the_manifest_is_true_and_the_keys_name_the_content(built):
    folder, manifest = built
    assert read_manifest(folder) == manifest
    assert [shard.num_rows for shard in manifest.train] == [64, 64, 64, 8]
    assert sum(shard.num_rows for shard in manifest.evaluation) == 40
    for file in manifest.files:
        assert digest_file(folder / file.key) == file.sha256
        assert (folder / file.key).stat().st_size == file.size
        assert file.sha256[:12] in file.key
    on_disk = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert on_disk == {file.key for file in manifest.files} | {"manifest.json"}


def test_rows_are_numbered_through_both_splits_and_nothing_of_the_machine_gets_in(built):
    folder, manifest = built
    ids = []
    for shard in manifest.shards:
        with pq.ParquetFile(folder / shard.key) as file:
            assert file.schema_arrow.names == ["id", "text", "label"]
            assert file.metadata.metadata is None
            ids += file.read().column("id").to_pylist()
    assert ids == list(range(240))


def test_the_tokenizer_is_a_lower_casing_bert_one(built):
    folder, manifest = built
    tokenizer = Tokenizer.from_file(str(folder / manifest.tokenizer.key))
    assert tokenizer.get_vocab_size() == manifest.vocab_size
    item, two = tokenizer.encode("The Battery is GREAT."), tokenizer.encode("the battery is great.")
    assert item.ids == two.ids
    assert item.tokens[0] == "[CLS]"
    assert item.tokens[-1] == "[SEP]"
    pair = tokenizer.encode("good", "bad")
    assert pair.type_ids[0] == 0
    assert pair.type_ids[-1] == 1
    assert [tokenizer.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]
    assert "[UNK]" not in item.tokens
    assert tokenizer.decode(item.ids) == "the battery is great."


def test_a_cased_tokenizer_differs():
    texts = ["Great battery", "great battery", "GREAT battery"] * 5
    data, _ = train_tokenizer(texts, 64, lowercase=False)
    tokenizer = Tokenizer.from_str(data.decode())
    assert tokenizer.encode("Great").ids != tokenizer.encode("great").ids


def test_tokenizer_training_is_deterministic_over_many_scripts_in_one_process():
    texts = [f"слово{i} word{i} 言葉 naïve {chr(0x4E00 + i)}" for i in range(300)]
    assert len({train_tokenizer(texts, 700, lowercase=True) for _ in range(5)}) == 1


def test_a_tokenizer_of_ones_own_is_kept_byte_by_byte(built, tmp_path):
    folder, manifest = built
    own = folder / manifest.tokenizer.key
    source = DatasetSource(grammar_seed=1, train_rows=20, evaluation_rows=8, tokenizer=str(own))
    other = build_dataset(source, "mine", "masked-lm", tmp_path)
    assert other.tokenizer.sha256 == manifest.tokenizer.sha256
    assert other.vocab_size == manifest.vocab_size
    assert other.num_labels is None
    assert pq.read_schema(tmp_path / other.train[0].key).names == ["id", "text"]
    broken = tmp_path / "tokenizer.json"
    broken.write_text(json.dumps({"model": "none"}))
    with pytest.raises(
        InvalidInputError, match=r"tokenizer\.json: tokenizer: is not a tokenizer of the tokenizers library"
    ):
        build_dataset(source.replace(tokenizer=str(broken)), "mine", "masked-lm", tmp_path)


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({}, ["gut", "##en", "tag", "!"]),
        ({"do_lower_case": False, "model_max_length": 512}, ["[UNK]", "[UNK]", "!"]),
        ({"do_lower_case": "false"}, ["[UNK]", "[UNK]", "!"]),
    ],
)
def test_a_vocabulary_alone_is_a_tokenizer(tmp_path, config, tokens):
    words = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "gut", "##en", "tag", "!"]
    (tmp_path / "vocab.txt").write_text("\r\n".join(words) + "\r\n", encoding="utf-8")
    if config:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "vocab.txt"):
        data, size, padding = read_tokenizer(path)
        assert (size, padding) == (10, 0)
        encoded = Tokenizer.from_str(data.decode()).encode("G\u00fcten Tag!", "gut")
        assert encoded.tokens == ["[CLS]", *tokens, "[SEP]", "gut", "[SEP]"]
        assert encoded.type_ids[-2:] == [1, 1]
    (tmp_path / "tokenizer_config.json").write_text('[{"do_lower_case": false}]')
    with pytest.raises(InvalidInputError, match=r"tokenizer_config\.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(words[:5]))
    with pytest.raises(InvalidInputError, match=r"vocab\.txt: tokenizer: lacks \[MASK\]"):
        read_tokenizer(tmp_path)


def test_a_tokenizer_that_is_no_bert_s_is_refused(built, tmp_path):
    content = json.loads((built[0] / built[1].tokenizer.key).read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[MASK]"]
    del content["model"]["vocab"]["[MASK]"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=r"tokenizer: lacks \[MASK\]: not a tokenizer of the BERT family"):
        read_tokenizer(tmp_path)


def test_best_accuracy_stands_only_where_it_is_known(built, tmp_path):
    assert built[1].best_accuracy == pytest.approx(0.9228, abs=1e-4)
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
    assert (
        build_dataset(DatasetSource(path=str(rows)), "mine", "sequence-classification", tmp_path).best_accuracy is None
    )
