"""Transport of experiments' bundles: complete and unchanged, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.judge.confirmation import Request
from plumbline.judge.intervention import Source
from plumbline.night.experiments.build import write_bundle
from plumbline.night.experiments.transport import fetch_bundle, publish_bundle
from plumbline.records import load_record
from plumbline.schema.errors import CorruptDataError, InvalidInputError
from plumbline.schema.experiment import Experiment
from tests.contract.records import make_record
from tests.memory_store import MemoryStore
from tests.unit.night.central.test_transport import OnceWrong, same_tree, swap_in

EXPERIMENT = Experiment.model_validate({
    "experiment_id": "experiment-1", "suspect": "the weights", "steps": 1,
    "replays": [{"stage": "weights", "source": "reference-weights.safetensors"}],
})  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "reference-weights.safetensors").write_bytes(b"tensors")
    return made


def test_a_bundle_comes_back_as_it_was_sent(folder: Path, tmp_path: Path) -> None:
    outbox = OnceWrong(".safetensors", 0)
    publish_bundle(outbox, folder, EXPERIMENT)
    publish_bundle(outbox, folder, EXPERIMENT)
    outbox.reads = 2
    into = fetch_bundle(outbox, EXPERIMENT.experiment_id, tmp_path / "into")
    (folder / "experiment.json").write_text(EXPERIMENT.model_dump_json())
    assert same_tree(into, folder)


def test_what_stays_wrong_is_not_imposed(folder: Path, tmp_path: Path) -> None:
    outbox = MemoryStore()
    publish_bundle(outbox, folder, EXPERIMENT)
    swap_in(outbox, "experiments/experiment-1/reference-weights.safetensors", b"uensors")
    with pytest.raises(CorruptDataError, match="digest"):
        fetch_bundle(outbox, EXPERIMENT.experiment_id, tmp_path / "into")
    swap_in(outbox, "experiments/experiment-1/files.json", b'{"files": []}')
    with pytest.raises(InvalidInputError, match="reference-weights"):
        fetch_bundle(outbox, EXPERIMENT.experiment_id, tmp_path / "into")


def test_a_record_without_the_part_is_named(tmp_path: Path) -> None:
    """An older worker's, say: its drift was judged, and stays so."""
    record = load_record(make_record(tmp_path / "made", "record-1", "aws"))
    request = Request("candidate", EXPERIMENT, (Source("reference-weights.safetensors", "record-1", "w.safetensors"),))
    with pytest.raises(InvalidInputError, match=r"record-1: w\.safetensors: the record has no such part"):
        write_bundle(request, {"record-1": record}, tmp_path / "bundle")
