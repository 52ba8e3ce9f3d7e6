"""Order, weights, generators and numerics."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import shutil
import tempfile
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from plumbline.data.staging.order import Order
from plumbline.environments.launch import make_weights as make_weights_apart
from plumbline.schema.digest import digest_array, digest_file
from plumbline.schema.errors import ConfigurationError, InvalidInputError, TrainingError
from plumbline.schema.record import read_record
from plumbline.schema.spec import ScheduleSpec, write_spec
from plumbline.train import job
from plumbline.train.batches import of_probe
from plumbline.train.digests import checksum
from plumbline.train.machine.fingerprint import recorded_variables
from plumbline.train.numerics import (
    apply_settings,
    digest_states,
    pack_states,
    read_settings,
    read_states,
    restore_states,
)
from plumbline.train.optimizers import schedule_factor
from plumbline.train.weights import make_weights
from tests.commands import run_plumbline
from tests.train.conftest import MODEL, Workshop
from tests.train.fake_memory import sized


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(513, 64), (30, 128), (7, 5), (1,), (64, 64)])
def test_a_checksum_of_weights_sees_every_move(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Also of whole rows, as of a table that is read two rows late."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    cpu = torch.device("cpu")
    sums = checksum([values], cpu)
    assert torch.equal(sums, checksum([values.clone()], cpu))
    if len(values) > 1:
        swapped = values[[1, 0, *range(2, len(values))]]
        ends = values[[-1, *range(1, len(values) - 1), 0]]
        for moved in (values.roll(2, 0), values.roll(1, -1), values.flip(0), swapped, ends):
            assert not torch.equal(sums, checksum([moved], cpu))
    assert not torch.equal(checksum([values, 2 * values], cpu), checksum([2 * values, values], cpu))


@pytest.mark.parametrize(
    ("batch_size", "world", "accumulation_steps", "micro_batch", "parts"),
    [
        (32, 1, 4, None, 4), (32, 2, 4, None, 4), (32, 1, 4, 32, 1), (32, 1, 1, 64, 1), (32, 1, 1, 8, 4),
        (32, 2, 1, 8, 2), (32, 4, 1, 16, 1), (30, 1, 1, 4, 10), (31, 1, 1, 30, 31), (4096, 1, 1, 1, 4096),
    ],
)  # fmt: skip
def test_the_spec_alone_decides_about_the_probes_micro_batches(
    batch_size: int, world: int, accumulation_steps: int, micro_batch: int | None, parts: int
) -> None:
    """At most so many rows at once, in parts of equal size."""
    spec = sized(
        "base", layers=1, length=8, batch_size=batch_size, probe={"micro_batch": micro_batch},
        optimizer={"accumulation_steps": accumulation_steps},
    )  # fmt: skip
    assert of_probe(spec, world).optimizer.accumulation_steps == parts
    assert ("micro_batch" in spec.to_json()["probe"]) is (micro_batch is not None)


def test_every_row_comes_once_an_epoch_in_an_order_of_its_own(workshop: Workshop) -> None:
    order = Order(workshop.manifest, 7, "recipe")
    first, second = order.rows(np.arange(96)), order.rows(np.arange(96, 192))
    assert sorted(first) == sorted(second) == list(range(96))
    assert first.tolist() != second.tolist() != list(range(96))
    assert order.rows([100, 3]).tolist() == [second[4], first[3]]


@pytest.mark.parametrize("other", [{"seed": 8}, {"recipe": "another"}])
def test_seed_and_recipe_decide_the_order(workshop: Workshop, other: dict) -> None:
    given = {"seed": 7, "recipe": "recipe", **other}
    assert (
        Order(workshop.manifest, **given).batch(0, 8).tolist()
        != Order(workshop.manifest, 7, "recipe").batch(0, 8).tolist()
    )


def test_the_first_batch_needs_the_first_shard_alone(workshop: Workshop) -> None:
    order = Order(workshop.manifest, 7, "recipe")
    shard = order.shards()[0]
    assert {row // 32 for row in order.batch(0, 8).tolist()} == {shard}


def test_the_order_is_known(workshop: Workshop) -> None:
    assert Order(workshop.manifest, 7, "recipe").batch(0, 8).tolist() == [62, 41, 55, 48, 60, 37, 51, 42]


def test_a_cosine_schedule_has_bits_of_no_c_library() -> None:
    factors = [schedule_factor(ScheduleSpec(kind="cosine"), step, 1000) for step in range(1001)]
    cosine = [(1 + math.cos(math.pi * (step - 2) / 998)) / 2 for step in range(2, 1001)]
    assert factors[2:] == pytest.approx(cosine, rel=1e-12, abs=1e-15)
    assert digest_array(np.array(factors))[:16] == "0b7cdd7e82ebac0d"
    assert {schedule_factor(ScheduleSpec(kind="constant"), step, 9) for step in range(2, 9)} == {1.0}


def test_weights_are_known_to_the_bit_and_shaped_as_they_should(tmp_path: Path) -> None:
    model = {**MODEL, "vocab_size": 256}
    sha256 = make_weights(model, 3, tmp_path / "w.safetensors")
    assert sha256 == digest_file(tmp_path / "w.safetensors")
    weights = load_file(tmp_path / "w.safetensors")
    table = weights["bert.embeddings.word_embeddings.weight"]
    assert digest_array(weights["classifier.weight"])[:16] == "b7cbfbe92559bab5"
    assert abs(table.std() - 0.02) < 0.001
    assert abs(table.mean()) < 0.001
    assert not table[0].any()
    assert not weights["classifier.bias"].any()
    assert (weights["bert.embeddings.LayerNorm.weight"] == 1).all()
    assert make_weights(model, 4, tmp_path / "other.safetensors") != sha256


@pytest.mark.long
def test_a_process_of_its_own_makes_the_same_weights(tmp_path: Path) -> None:
    model, apart = {**MODEL, "vocab_size": 256}, tmp_path / "apart"
    apart.mkdir()
    here = make_weights(model, 3, tmp_path / "here.safetensors")
    assert make_weights_apart(model, 3, apart / "w.safetensors") == here
    assert [path.name for path in apart.iterdir()] == ["w.safetensors"]
    with pytest.raises(InvalidInputError, match="hidden_size"):
        make_weights_apart({**model, "hidden_size": 63}, 3, tmp_path / "no.safetensors")


def checkpoint(folder: Path, task: str = "sequence-classification") -> Path:
    torch.manual_seed(0)
    kind = BertForSequenceClassification if task == "sequence-classification" else BertForMaskedLM
    config = BertConfig(**{**{k: v for k, v in MODEL.items() if k != "num_labels"}, "vocab_size": 256})
    kind(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("task", ["sequence-classification", "masked-lm"])
def test_a_checkpoint_is_taken_as_it_is_and_completed(tmp_path: Path, task: str) -> None:
    folder = checkpoint(tmp_path / "checkpoint", task)
    model = {**MODEL, "vocab_size": 256, "checkpoint": str(folder), "task": "sequence-classification"}
    make_weights(model, 3, tmp_path / "w.safetensors")
    result, shipped = load_file(tmp_path / "w.safetensors"), load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.weight"
    assert np.array_equal(result[name], shipped[name])
    same = np.array_equal(result["classifier.weight"], shipped.get("classifier.weight"))
    assert same == (task == "sequence-classification")


def test_a_checkpoint_of_another_shape_or_of_nothing(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint")
    model = {**MODEL, "vocab_size": 300, "checkpoint": str(folder)}
    with pytest.raises(InvalidInputError, match="word_embeddings"):
        make_weights(model, 3, tmp_path / "w.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"no model\.safetensors"):
        make_weights({**model, "checkpoint": str(tmp_path / "empty")}, 3, tmp_path / "w.safetensors")


def test_every_generator_can_be_put_back() -> None:
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    random.gauss(0, 1)
    np.random.normal()  # noqa: NPY002
    before = pack_states(read_states())
    drawn = (random.gauss(0, 1), np.random.normal(), torch.rand(2).tolist())  # noqa: NPY002
    assert digest_states(read_states()) != digest_states({**read_states(), "python": b""})
    restore_states(before)
    assert (random.gauss(0, 1), np.random.normal(), torch.rand(2).tolist()) == drawn  # noqa: NPY002


@pytest.mark.parametrize("damage", [lambda s: s[:-3], lambda s: s[:5], lambda _: np.full(40, 255, np.uint8)])
def test_a_damaged_state_is_refused(damage) -> None:
    with pytest.raises(InvalidInputError, match="rng state"):
        restore_states(damage(pack_states(read_states())))


def test_a_setting_that_did_not_take_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    with pytest.raises(TrainingError, match=r"deterministic_algorithms.*False after being set to True"):
        apply_settings("fp32", strict=True, part="probe")


def test_every_leaf_of_fp32_precision_in_this_torch_is_covered() -> None:
    """A new torch with one more leaf must not go unnoticed."""
    leaves, owners = set(), {"backends": torch.backends}
    while owners:
        path, owner = owners.popitem()
        if hasattr(owner, "fp32_precision") and not isinstance(owner, type):
            leaves.add(f"{path}.fp32_precision")
        if getattr(owner, "__name__", "") == f"torch.{path}":
            held = {**vars(owner), **vars(type(owner)), **vars(vars(owner).get("m", owner))}
            # This one asks the device for each attribute.
            owners |= {f"{path}.{name}": each for name, each in held.items() if name != "cufft_plan_cache"}
    assert leaves <= set(read_settings())


def test_the_same_values_with_and_without_datasets(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = workshop.spec(probe={"steps": 2})
    result = importlib.util.find_spec
    assert result("datasets") is not None
    item = workshop.train(spec)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "datasets" else result(name, *more)
    )
    other = workshop.train(spec)
    assert other.record.evidence.data == item.record.evidence.data
    assert [step.batch for step in other.probe.steps_of()] == [step.batch for step in item.probe.steps_of()]


@pytest.mark.long
def test_datasets_reads_rows_where_packages_are_in_a_folder_of_their_own(workshop: Workshop, tmp_path: Path) -> None:
    """`dill` cannot pickle a package of `PYTHONPATH`, as `pip install --target` and `make gpu-bundle` install them."""

    def linked(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # a different file system
            shutil.copy2(source, target)

    installed = importlib.util.find_spec("pyarrow")
    assert installed.origin is not None
    skipped = shutil.ignore_patterns("include", "tests", "__pycache__")
    shutil.copytree(Path(installed.origin).parent, tmp_path / "pyarrow", ignore=skipped, copy_function=linked)
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    write_spec(workshop.spec(probe={"steps": 2}), spec)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PLUMBLINE_CACHE": str(tmp_path / "cache")}
    run_plumbline("train", spec, "--data", workshop.url, "--out", out, env=environment)
    assert read_record(out).exit.status == "completed"


def test_a_record_has_no_leftovers_and_anyone_may_read_it(workshop: Workshop) -> None:
    trained = workshop.train(workshop.spec(probe={"steps": 1}))
    assert {path.name for path in trained.folder.iterdir()} == {"record.json"} | {p.key for p in trained.record.parts}
    assert {oct(path.stat().st_mode & 0o044) for path in trained.folder.iterdir()} == {"0o44"}
    json.loads((trained.folder / "record.json").read_bytes())


def test_a_clock_that_is_set_back_during_a_training_changes_no_duration(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Corrected(datetime):
        late = timedelta(hours=1)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            late, cls.late = cls.late, timedelta()
            return datetime.now(tz) + late

    monkeypatch.setattr(job, "datetime", Corrected)
    assert 0 < workshop.train(workshop.spec(probe={"steps": 1})).record.seconds < 600


def test_a_folder_of_one_run_is_no_part_of_the_fingerprint() -> None:
    """Nor is torchrun's identity of one launch: both stood as suspects in every report."""
    own = Path(tempfile.gettempdir()) / "tmp3xd4b8f1prefect"
    given = {
        "PYTHONPATH": f"{own}/flows{os.pathsep}/opt/team{os.pathsep}{own}",
        "TORCHINDUCTOR_CACHE_DIR": str(own),
        "OMP_NUM_THREADS": "4",
        "TORCHELASTIC_RUN_ID": "3f0e",
        "LD_PRELOAD": "",
        "PYTHONTRACEMALLOC": "25",
        "PYTHON_VERSION": "3.12",
        "HOME": "/root",
    }
    assert recorded_variables(given) == {
        "LD_PRELOAD": "", "OMP_NUM_THREADS": "4", "PYTHONPATH": "/opt/team", "PYTHONTRACEMALLOC": "25",
    }  # fmt: skip
