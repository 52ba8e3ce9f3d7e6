"""Bad input: one clear line, kept evidence, and the right exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file

from plumbline.data.datasets.publish import publish, publish_weights, weights_key
from plumbline.data.stores import StoreUnavailableError, open_store
from plumbline.environments.launch import trainer_environment
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import (
    INFRASTRUCTURE,
    RECORD_CODES,
    AccessError,
    ConfigurationError,
    DiskFullError,
    InvalidInputError,
    PlumblineError,
    StoppedError,
    TrainingError,
    UnavailableError,
    record_code,
)
from plumbline.schema.fingerprint import Expected
from plumbline.schema.manifest import DataFile, Manifest
from plumbline.schema.record import read_record
from plumbline.train import digests
from plumbline.train.engine import Engine
from plumbline.train.exits import known_error
from plumbline.train.failure import TrainingFailedError
from plumbline.train.machine.clock import StepClock
from plumbline.train.source import DataSource, open_source
from plumbline.train.watch.step_log import StepLogger
from tests.commands import error_line, run
from tests.train.conftest import Trained, Workshop, before_steps


def failed(workshop: Workshop, spec, kind: type[Exception] = TrainingError, **given):
    """Return the error and the record of a failed training."""
    out = workshop.out()
    with pytest.raises(kind) as caught:
        workshop.train(spec, out=out, **given)
    return caught.value, read_record(out)


def republished(workshop: Workshop, folder: Path, change) -> str:
    """Publish the dataset with changed files and a matching manifest; return its URL."""
    manifest = workshop.manifest
    files = {}
    for file in manifest.files:
        path = folder / "dataset" / file.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((workshop.folder / "dataset" / file.key).read_bytes())
        rows = change(file.key, path)
        described = {**file.to_json(), "size": path.stat().st_size, "sha256": digest_file(path)}
        files[file.key] = described | ({"num_rows": rows} if rows is not None else {})
    changed = manifest.to_json()
    changed["tokenizer"] = files[manifest.tokenizer.key]
    for split in ("train", "evaluation"):
        changed[split] = [files[shard["key"]] for shard in changed[split]]
    (folder / "dataset" / "manifest.json").write_text(json.dumps(Manifest.model_validate(changed).to_json()))
    url = f"file://{folder}/store"
    publish(folder / "dataset", open_store(url))
    publish_weights(workshop.weights, open_store(url), workshop.weights_sha256)
    return url


def raising(error: Exception) -> Callable[..., None]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


def edited(position: int, column: str, value: object):
    """Change a value of the first training shard, or drop a row if `value` is `None`."""

    def change(key: str, path: Path) -> int | None:
        if not key.startswith("train/00000"):
            return None
        table = pq.read_table(path)
        values = table.column(column).to_pylist()
        values[position] = value
        place = table.schema.get_field_index(column)
        pq.write_table(
            table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type)), path
        )
        return None

    return change


def test_a_loss_that_is_no_number_stops_at_its_step(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(engine, step):
        if step == 3:
            next(engine.model.parameters()).data.fill_(float("nan"))

    before_steps(monkeypatch, spoil)
    error, record = failed(workshop, workshop.spec())
    assert "probe step 3: the loss is nan" in str(error)
    assert (record.exit.status, record.exit.code, record.exit.part, record.exit.step) == (
        "failed", "non-finite", "probe", 3,
    )  # fmt: skip
    assert list(range(record.evidence.probe.num_steps)) == [0, 1, 2, 3]
    assert record.evidence.probe.at(3).loss is None
    assert load_file(workshop.folder / f"out-{workshop._count}" / "batches.safetensors")["row_ids"].shape == (4, 8)


def test_a_device_out_of_memory_says_what_to_do(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    monkeypatch.setattr(torch.nn.functional, "layer_norm", raising(full))
    error, record = failed(workshop, workshop.spec())
    assert "out of memory" in str(error)
    assert "smaller probe.micro_batch" in str(error)
    assert (record.exit.code, record.exit.step) == ("out-of-memory", 0)


def test_an_error_nobody_foresaw_is_in_the_record_too(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "layer_norm", raising(RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED")))
    error, record = failed(workshop, workshop.spec())
    assert "CUBLAS_STATUS_EXECUTION_FAILED" in str(error)
    assert record.exit.code == "error"


ALL_PARTS = {
    "speed": {"steps": 10, "precision": "fp32"},
    "learn": {"steps": 6, "evaluate_every": 2, "checkpoint_every": 100, "evaluation_rows": 8},
}


def dies(patch: pytest.MonkeyPatch, part: str, step: int) -> None:
    """Make the device fail from a step on, like after an illegal access."""
    plain, totals, dead = Engine.step, StepClock.totals, []

    def answers(question):
        def asked(*given):
            if dead:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return question(*given)

        return asked

    def steps(self, place, batch):
        if (self.part, place) == (part, step):
            dead.append(step)
        return answers(plain)(self, place, batch)

    patch.setattr(Engine, "step", steps)
    if part == "speed":  # of a part that has ended every event is read
        patch.setattr(StepClock, "totals", answers(totals))
    patch.setattr(digests, "host_array", answers(digests.host_array))


@pytest.mark.long
@pytest.mark.parametrize(("part", "step"), [("speed", 3), ("learn", 3)])
def test_a_device_that_dies_takes_no_other_parts_evidence_along(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch, part: str, step: int
) -> None:
    dies(monkeypatch, part, step)
    error, record = failed(workshop, workshop.spec(**ALL_PARTS))
    assert "illegal memory access" in str(error)
    assert error.exit_code == 4
    assert (record.exit.status, record.exit.code, record.exit.part) == ("failed", "error", part)
    assert record.evidence.probe == baseline.probe
    assert record.evidence.model == baseline.record.evidence.model
    assert (record.evidence.speed is None) == (part == "speed")
    curve = record.evidence.learn
    if part == "speed":
        assert curve is None
    else:  # as far as it was read when the device died; of the weights nothing is known
        assert (curve.steps, len(curve.losses), curve.last_weights) == (2, 2, None)
        assert [evaluation.step for evaluation in curve.evaluations] == [2]
    assert {"batches.safetensors", "sketches.safetensors"} <= {file.key for file in record.parts}


@pytest.mark.long
def test_a_device_that_dies_before_the_last_digest_fails_the_training(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weigh(_log, done):
        raise RuntimeError(f"CUDA error: an illegal memory access was encountered after {done} steps")

    monkeypatch.setattr(StepLogger, "weigh", weigh)
    _, record = failed(workshop, workshop.spec(learn=ALL_PARTS["learn"]))
    assert (record.exit.status, record.exit.code, record.exit.part) == ("failed", "error", "learn")
    assert record.evidence.probe == baseline.probe
    assert 0 < len(record.evidence.learn.losses) < 6
    assert record.evidence.learn.last_weights is None


@pytest.mark.parametrize(
    ("change", "words"), [("shape", "has the shape"), ("missing", "is missing"), ("more", "is not a parameter")]
)
def test_weights_that_do_not_fit(workshop: Workshop, tmp_path: Path, change: str, words: str) -> None:
    weights = load_file(workshop.weights)
    if change == "shape":
        weights["classifier.weight"] = np.zeros((3, 64), np.float32)
    elif change == "missing":
        del weights["classifier.weight"]
    else:
        weights["surplus.weight"] = np.zeros(1, np.float32)
    save_file(weights, tmp_path / "w.safetensors")
    sha256 = digest_file(tmp_path / "w.safetensors")
    publish_weights(tmp_path / "w.safetensors", workshop.store, sha256)
    spec = workshop.spec()
    spec = spec.replace(model={**spec.model.to_json(), "weights_key": weights_key(sha256), "weights_sha256": sha256})
    error, record = failed(workshop, spec)
    assert words in str(error)
    assert record.exit.code == "weights"


def larger_tokenizer(key: str, path: Path) -> None:
    if key.startswith("tokenizer"):
        content = json.loads(path.read_text())
        vocabulary = content["model"]["vocab"]
        vocabulary["another"] = len(vocabulary)
        path.write_text(json.dumps(content))


def empty_shard(key: str, path: Path) -> None:
    if key.startswith("train/00000"):
        pq.write_table(pq.read_table(path).slice(0, 0), path)


@pytest.mark.parametrize(
    ("change", "words", "code"),
    [
        (edited(5, "label", 9), r"train/00000\S* row 5\b.*9 is not a label from 0 to 1", "labels"),
        (larger_tokenizer, "has 257 tokens, the model 256", "tokenizer"),
        (empty_shard, "contains 0 rows, the manifest says 32", "data"),
    ],
    ids=["label out of range", "larger tokenizer", "fewer rows than promised"],
)
def test_data_that_cannot_be_trained_on_is_named(
    workshop: Workshop, tmp_path: Path, change: Callable[..., None], words: str, code: str
) -> None:
    url = republished(workshop, tmp_path, change)
    error, record = failed(workshop, workshop.spec(batch_size=96, probe={"steps": 1}), data=url)
    assert re.search(words, str(error))
    assert record.exit.code == code


def test_bytes_that_do_not_match_their_manifest(workshop: Workshop, tmp_path: Path) -> None:
    url = republished(workshop, tmp_path, lambda *_: None)
    shard = next((tmp_path / "store" / "reviews" / "train").glob("00000-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    spec = workshop.spec(batch_size=96, probe={"steps": 1})
    _, record = failed(workshop, spec, InvalidInputError, data=url, cache=tmp_path / "cache")
    assert record.exit.status == "failed"


def test_without_store_and_cache_there_is_nothing_to_train_on(workshop: Workshop, tmp_path: Path) -> None:
    error, _ = failed(workshop, workshop.spec(), ConfigurationError, data=None, cache=tmp_path / "empty")
    assert "--data" in str(error)


def test_micro_batches_that_do_not_divide(workshop: Workshop) -> None:
    with pytest.raises(ValueError, match="accumulation_steps"):
        workshop.spec(optimizer={"accumulation_steps": 3})


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("edit", "field"), [(("text", "another film altogether"), "input_ids"), (("label", None), "labels")]
)
def test_one_edited_row_is_found_with_its_number(workshop: Workshop, tmp_path: Path, edit: tuple, field: str) -> None:
    """A dataset edited elsewhere, with a manifest that fits, is evidence and no error."""
    column, value = edit
    shard = workshop.manifest.train[0]
    before = pq.read_table(workshop.folder / "dataset" / shard.key)
    value = 1 - before.column("label")[11].as_py() if value is None else value
    url = republished(workshop, tmp_path, edited(11, column, value))
    spec = workshop.spec(batch_size=32, probe={"steps": 3})
    item, other = workshop.train(spec), workshop.train(spec, data=url)
    assert other.record.exit.status == "completed"
    assert other.record.evidence.data.manifest_sha256 != spec.data.manifest_sha256
    rows = [pq.read_table(result.folder / "rows.parquet").to_pylist() for result in (item, other)]
    changed = [a["row_id"] for a, b in zip(*rows, strict=True) if a != b]
    assert changed == [11]
    batches = [result.arrays("batches")[field] for result in (item, other)]
    step, place = np.argwhere((batches[0] != batches[1]).reshape(3, 32, -1).any(axis=-1))[0]
    assert item.arrays("batches")["row_ids"][step, place] == 11


def test_the_process_leaves_one_clear_line_and_the_exit_code(workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = workshop.command(workshop.spec(), out)
    path = out.with_suffix(".json")
    content = json.loads(path.read_text())
    content["spec"]["seed"] += 1
    path.write_text(json.dumps(content))
    assert "digest" in error_line(*command, code=4, env=trainer_environment())


def test_a_failure_knows_its_place() -> None:
    error = TrainingFailedError("stopped", code="error", part="learn", step=12)
    assert str(error) == "learn step 12: stopped"


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (StoreUnavailableError("no answer"), "unavailable", 3),
        (UnavailableError("cannot be reached within 32 s"), "unavailable", 3),
        (OSError(errno.EIO, "Input/output error"), "unavailable", 3),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "unavailable", 3),
        (DiskFullError("no room left"), "disk-full", 3),
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full", 3),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk-full", 3),
        (AccessError("the token has expired"), "access", 2),
        (StoppedError("stopped on request"), "stopped", 3),
    ],
)
def test_a_store_a_disk_or_a_credential_that_fails_is_infrastructure(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str, exit_code: int
) -> None:
    monkeypatch.setattr("plumbline.train.job.open_source", raising(error))
    caught, record = failed(workshop, workshop.spec(), PlumblineError)
    assert (record.exit.code, record.exit.is_infrastructure) == (code, True)
    assert caught.exit_code == exit_code


class Vanishing:
    """Source whose verified files of one kind are gone when they are read, as after a cleaning of the cache."""

    def __init__(self, source: DataSource, kind: str) -> None:
        self._source, self._kind = source, kind

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)

    def _path(self, key: str, path: Path) -> Path:
        return path.with_name("gone") if key.startswith(self._kind) else path

    def wait(self, file: DataFile) -> Path:
        return self._path(file.key, self._source.wait(file))

    def fetch(self, key: str, sha256: str) -> Path:
        return self._path(key, self._source.fetch(key, sha256))


@pytest.mark.parametrize("kind", ["train/", "tokenizer", "weights/"])
def test_a_file_that_cannot_be_opened_is_no_fault_of_its_contents(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    @contextlib.contextmanager
    def vanishing(*given: object, **options: object):
        with open_source(*given, **options) as source:
            yield Vanishing(source, kind)

    monkeypatch.setattr("plumbline.train.job.open_source", vanishing)
    error, record = failed(workshop, workshop.spec(), PlumblineError)
    assert (record.exit.code, record.exit.is_infrastructure, error.exit_code) == ("unavailable", True, 3)


def broken_by(cause: Exception, how: str) -> Exception:
    """Return an error of a library that `cause` led to."""

    class CompilerError(RuntimeError):
        """Like torch's, which is raised `from None`."""

        def __init__(self, inner_exception: Exception) -> None:
            super().__init__("the backend failed")
            self.inner_exception = inner_exception

    try:
        try:
            raise cause  # noqa: TRY301 - to have a context
        except Exception as error:
            if how == "inner":
                raise CompilerError(error) from None
            if how == "from":
                raise RuntimeError("failed") from error
            raise RuntimeError("failed while it was handled")  # noqa: B904 - that is the case
    except RuntimeError as error:
        return error


def refused(call: Callable[[], object]) -> Exception:
    """Return the error of a call that the system refuses."""
    with pytest.raises(RuntimeError) as caught:
        call()
    return caught.value


def many_threads() -> None:
    before = threading.stack_size(1 << 46)
    try:
        threading.Thread(target=int).start()
    finally:
        threading.stack_size(before)


def device_error(code: int, text: str) -> Exception:
    error = torch.AcceleratorError(f"CUDA error: {text}")
    error.error_code = code
    return error


FULL, LEAK = OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (broken_by(FULL, "from"), "disk-full"),
        (broken_by(LEAK, "inner"), "unavailable"),
        (broken_by(FULL, "context"), "disk-full"),
        (broken_by(FileNotFoundError(errno.ENOENT, "No such file"), "context"), "error"),
        (broken_by(MemoryError(), "inner"), "out-of-memory"),
        (refused(lambda: torch.empty(1 << 58)), "out-of-memory"),
        (refused(many_threads), "unavailable"),
        (torch.distributed.DistNetworkError("connection refused"), "unavailable"),
        (device_error(2, "out of memory"), "out-of-memory"),
        (device_error(46, "all CUDA-capable devices are busy or unavailable"), "device-lost"),
        (device_error(214, "uncorrectable ECC error encountered"), "device-lost"),
        (device_error(719, "unspecified launch failure"), "device-lost"),
        (device_error(803, "system has unsupported display driver / cuda driver combination"), "device-lost"),
        (device_error(999, "unknown error"), "device-lost"),
        (device_error(700, "an illegal memory access was encountered"), "error"),
        (device_error(710, "device-side assert triggered"), "error"),
    ],
)
def test_what_the_machine_refuses_in_a_step_has_its_own_code(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    """Each of them reaches the step as an error of a library."""

    monkeypatch.setattr(torch.nn.functional, "layer_norm", raising(error))
    caught, record = failed(workshop, workshop.spec(), PlumblineError)
    is_infrastructure = code not in {"error", "out-of-memory"}
    assert (record.exit.code, record.exit.is_infrastructure) == (code, is_infrastructure)
    assert (record.exit.part, record.exit.step) == ("probe", 0)
    assert caught.exit_code == (3 if is_infrastructure else 4)


def test_a_librarys_error_on_a_lost_device_is_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS may be called first, and knows of no reason; the device keeps its error."""

    class Stream:
        def query(self) -> bool:
            raise device_error(214, "uncorrectable ECC error encountered")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    error = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")
    assert record_code(known_error(error, ("probe", 3), torch.device("cuda", 0))) == "device-lost"
    assert known_error(error, ("probe", 3), torch.device("cpu")).code == "error"


def test_every_class_of_error_has_a_code_and_the_narrower_class_comes_first() -> None:
    kinds = [kind for kind, _ in RECORD_CODES]
    for place, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:place])
    assert {code for _, code in RECORD_CODES} >= INFRASTRUCTURE
    training = [TrainingFailedError("x", code="labels"), InvalidInputError("x"), ConfigurationError("x"), ValueError()]
    assert not {record_code(error) for error in training} & INFRASTRUCTURE


@pytest.mark.long
def test_a_disk_that_fills_under_a_checkpoint_is_infrastructure(workshop: Workshop, tmp_path: Path) -> None:
    """A process that may write no file of more than 200 KiB: its record fits, its checkpoint does not."""
    learn = {"steps": 4, "evaluate_every": 4, "checkpoint_every": 1, "evaluation_rows": 8}
    spec = workshop.spec(probe=None, learn=learn)
    workshop.train(spec)
    out = tmp_path / "out"
    command = ["bash", "-c", 'ulimit -f 200; exec "$@"', "bash", *workshop.command(spec, out)]
    assert "Traceback" not in run(*command, code=3, env=trainer_environment()).stderr
    record = read_record(out)
    assert (record.exit.code, record.exit.is_infrastructure) == ("disk-full", True)


GPU = Expected(accelerator="NVIDIA A10G")


@pytest.mark.parametrize(
    ("expected", "key"), [(GPU, "accelerator"), (Expected(gpus=2), "gpus"), (Expected(lock_sha256="e" * 64), "lock")]
)
def test_another_machine_than_the_suite_names_is_found_before_anything_is_staged(
    workshop: Workshop, tmp_path: Path, expected: Expected, key: str
) -> None:
    error, record = failed(workshop, workshop.spec(), expected=expected, cache=tmp_path / "cache")
    assert f"{key}: found " in str(error)
    assert (record.exit.code, record.exit.is_infrastructure, error.exit_code) == ("device", False, 4)
    assert not (tmp_path / "cache").exists()


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), refused(lambda: torch.empty(1 << 58))],
)
def test_windows_without_memory_cost_themselves_and_not_the_record(
    workshop: Workshop, baseline: Trained, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("plumbline.train.portable.probe_windows.ProbeWindows._train", raising(error))
    trained = workshop.train(workshop.spec())
    assert trained.record.exit.status == "completed"
    assert trained.probe.portable.lost
    assert trained.probe.portable.windows == ()
    assert trained.probe.steps_of() == baseline.probe.steps_of()
    assert trained.probe.evaluation == baseline.probe.evaluation


def test_another_error_of_a_window_is_one_of_the_training(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = TrainingFailedError("the loss is nan", code="non-finite", part="probe")
    monkeypatch.setattr("plumbline.train.portable.probe_windows.ProbeWindows._train", raising(broken))
    _, record = failed(workshop, workshop.spec())
    assert record.exit.code == "non-finite"
