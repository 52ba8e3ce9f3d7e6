"""Doctor's findings, each with a hint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from plumbline import __version__
from plumbline.data.stores import ObjectExistsError, ObjectInfo, ObjectMissingError, PreconditionFailedError
from plumbline.environments.selfcheck import installed_torch
from plumbline.night.doctor import CheckResult, ExpectedStack, Report, examine_report, look_here, worst_code
from plumbline.night.doctor.checks import explain_refusal
from plumbline.night.doctor.place import installed_gpus, is_driver_new_enough
from plumbline.night.doctor.stores import Visit, examine_disk, examine_store, examine_stores
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import AccessError, Refusal
from plumbline.schema.manifest import DataFile, Manifest, Shard
from plumbline.schema.suite import Suite

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
GOOD = Report(
    plumbline=__version__, torch="2.13.0", gpus=("NVIDIA A10G",), cuda="13.0.96", driver="580.65.06",
    free_bytes=1 << 40, now=NOON,
)  # fmt: skip
LARGE = CheckResult(where="data", what="", well=True, size=8 << 30)
EXPECTED = ExpectedStack(torch="2.13.0", accelerator="NVIDIA A10G")


def sick(report: Report, expected: ExpectedStack = EXPECTED) -> list[CheckResult]:
    asked, answered = NOON - timedelta(seconds=2), NOON + timedelta(seconds=2)
    return [item for item in examine_report("aws", report, expected, asked, answered) if not item.well]


def test_a_healthy_place() -> None:
    assert sick(GOOD) == []


@pytest.mark.parametrize(
    ("change", "where", "hint"),
    [
        ({"plumbline": "0.0.1"}, "aws's plumbline", "same version"),
        ({"torch": "2.12.0"}, "aws's torch", "lock file"),
        ({"torch": ""}, "aws's torch", "lock file"),
        ({"selfcheck": {"verdict": "drift", "at": "the loss"}}, "aws's training stack", "plumbline train --selfcheck"),
        ({"gpus": ()}, "aws's accelerator", "driver"),
        ({"gpus": ("NVIDIA T4",)}, "aws's accelerator", "driver"),
        ({"driver": "575.57.08"}, "aws's driver", "newer NVIDIA driver"),
        ({"driver": ""}, "aws's driver", "newer NVIDIA driver"),
        ({"driver": "nonsense"}, "aws's driver", "newer NVIDIA driver"),
        ({"cuda": "14.0.1"}, "aws's driver", "newer NVIDIA driver"),
        ({"free_bytes": 1 << 20}, "aws's disk", "free at least 2 GiB"),
        ({"free_bytes": 9 << 30, "stores": (LARGE,)}, "aws's disk", "free at least 10 GiB"),
        ({"now": NOON + timedelta(hours=1)}, "aws's clock", "time service"),
        ({"now": NOON - timedelta(hours=1)}, "aws's clock", "time service"),
    ],
)
def test_each_ailment_is_found_alone_and_has_its_mend(change: Mapping[str, object], where: str, hint: str) -> None:
    result = sick(GOOD.replace(**change))
    assert [item.where for item in result] == [where]
    assert hint in result[0].hint


def test_a_round_trip_that_took_long_is_no_skewed_clock() -> None:
    late = list(examine_report("aws", GOOD, EXPECTED, NOON - timedelta(minutes=5), NOON + timedelta(minutes=5)))
    assert all(item.well for item in late)


def test_a_cpu_platform_needs_no_gpu() -> None:
    assert sick(GOOD.replace(gpus=()), ExpectedStack(torch="2.13.0", accelerator="cpu")) == []


@pytest.mark.parametrize(
    ("gpus", "accelerator", "count", "text"),
    [
        (("NVIDIA A10-24Q",), "A10", 1, ""),
        (("NVIDIA A10G",), "A10", 1, "NVIDIA A10G; expected: A10 (NVIDIA A10 or NVIDIA A10-24Q)"),
        (("NVIDIA L4", "NVIDIA L4"), "NVIDIA L4", 2, ""),
        (("NVIDIA L4",), "NVIDIA L4", 2, "NVIDIA L4; expected: 2 x NVIDIA L4"),
        (("NVIDIA L4",), "", 2, "NVIDIA L4; expected: 2 x any"),
        ((), "", 2, ""),
    ],
)
def test_a_family_of_gpus_and_their_number(gpus: tuple[str, ...], accelerator: str, count: int, text: str) -> None:
    expected = ExpectedStack(torch="2.13.0", accelerator=accelerator, gpus=count)
    found = [item.what for item in sick(GOOD.replace(gpus=gpus), expected) if "accelerator" in item.where]
    assert found == ([text] if text else [])


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ("580.65.06", "13.0.96", True), ("580", "13.1", True), ("610.43.02", "13.0.96", True),
        ("579.99.99", "13.0.96", False), ("525.60.13", "12.8.57", True), ("524.0", "12.8.57", False),
        ("610.43.02", "12.8.57", True), ("450.80.02", "11.8.89", True), ("", "13.0", False), ("580", "", False),
    ],
)  # fmt: skip
def test_the_driver_that_a_cuda_version_needs(driver: str, cuda: str, runs: bool) -> None:
    assert is_driver_new_enough(driver, cuda) is runs


def test_a_cuda_build_of_torch_needs_a_driver_only_for_a_gpu() -> None:
    on_cpu = GOOD.replace(gpus=(), driver="")
    for accelerator in ("cpu", ""):
        assert sick(on_cpu, ExpectedStack(torch="2.13.0", accelerator=accelerator)) == []
    old = GOOD.replace(driver="575.57.08")
    assert [item.where for item in sick(old, ExpectedStack(torch="2.13.0"))] == ["aws's driver"]
    wanted = sick(on_cpu, EXPECTED)
    assert [item.where for item in wanted] == ["aws's accelerator", "aws's driver"]


def test_the_quota_of_a_trainings_control_group_is_said(tmp_path: Path) -> None:
    limited = look_here(tmp_path, NOON, cpu_quota=1.5).replace(num_cores=8)
    results = examine_report("aws", limited, ExpectedStack(), NOON, NOON)
    (line,) = [item for item in results if item.where == "aws's processor"]
    assert (line.well, line.what) == (True, "a control group's quota holds trainings to 1.5 of 8 cores")


def test_a_cpu_build_of_torch_needs_no_driver() -> None:
    assert sick(GOOD.replace(cuda="", driver="")) == []


def test_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = examine_store(Visit("outbox", f"file://{tmp_path}", "write and read"))
    assert good.well
    assert examine_store(Visit("outbox", f"file://{tmp_path}", "write and read")).well
    missing = examine_store(Visit("data", f"file://{tmp_path}", "read", "reviews"))
    assert not missing.well
    assert "plumbline deploy SUITE --publish" in missing.hint
    for name, value in (
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
    ):
        monkeypatch.setenv(name, value)
    away = examine_store(Visit("central store", "s3://bucket/prefix", "write, replace and read"))
    assert (away.well, away.code) == (False, 3)
    assert away.hint


def test_two_names_of_one_place_are_two_outboxes_in_no_suite(tmp_path: Path) -> None:
    """An alias of a bucket, an endpoint or a folder is seen in no URL: what one name writes, the other has."""
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    outboxes = {"aws": "real", "azure": "alias", "gcp": "own"}
    suite = Suite.model_validate({
        "name": "nightly", "store": f"file://{tmp_path}/central", "reference": "aws",
        "workloads": {"w": {"model": "tiny", "data": "d", "seed": 7, "batch_size": 8, "probe": {"steps": 2}}},
        "platforms": {
            name: {"work_pool": name, "data": f"file://{tmp_path}/data", "outbox": f"file://{tmp_path}/{folder}"}
            for name, folder in outboxes.items()
        },
    })  # fmt: skip
    found = {result.where: result for result in examine_stores(suite, tmp_path) if "outbox" in result.where}
    same = [result for result in found.values() if "is the same place as a different outbox" in result.what]
    assert len(same) == 1
    assert same[0].where in ("aws: outbox", "azure: outbox")
    assert (same[0].well, same[0].code, same[0].hint) == (False, 2, "give each platform an outbox of its own")
    assert found["gcp: outbox"].well


@pytest.mark.parametrize("needs", ["read", "write and read", "write, replace and read"])
def test_a_url_that_leads_to_a_file_is_no_dataset_that_is_missing(tmp_path: Path, needs: Any) -> None:
    (tmp_path / "x.toml").write_text("x")
    url = f"file://{tmp_path}/x.toml"
    result = examine_store(Visit("data", url, needs, "reviews" if needs == "read" else ""))
    assert (result.well, result.code) == (False, 2)
    assert result.what.startswith(url)
    assert "folder" in result.what
    assert result.hint == "use the URL of a folder that exists or can be created"


def test_a_store_that_keeps_nothing_of_what_was_written_holds_no_nameless_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_store: object, key: str) -> bytes:
        raise ObjectMissingError("no such object", where="file:///x", key=key)

    monkeypatch.setattr("plumbline.night.doctor.stores.read_bytes", gone)
    result = examine_store(Visit("outbox", f"file://{tmp_path}", "write and read"))
    assert result.what == f"file://{tmp_path}: does not return the object just written"


class Careless:
    """Store in memory that ignores the conditions of writes, as some S3-compatible services do."""

    url = "s3://careless"

    def __init__(self, *, ignores: str) -> None:
        self._ignores = ignores
        self._content: dict[str, bytes] = {}

    def create(self, key: str, data: bytes) -> ObjectInfo:
        if key in self._content and self._ignores != "create":
            raise ObjectExistsError("exists")
        self._content[key] = data
        return ObjectInfo(key, len(data), digest_bytes(data))

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        if digest_bytes(self._content[key]) != if_match and self._ignores != "swap":
            raise PreconditionFailedError("changed")
        self._content[key] = data
        return ObjectInfo(key, len(data), digest_bytes(data))


@pytest.mark.parametrize(
    ("ignores", "problem"),
    [("create", "replaces an object on create"), ("swap", "replaces an object that has changed")],
)
def test_a_store_that_ignores_the_condition_of_a_write_is_found(
    monkeypatch: pytest.MonkeyPatch, ignores: str, problem: str
) -> None:
    monkeypatch.setattr("plumbline.night.doctor.stores.open_store", lambda *_, **__: Careless(ignores=ignores))
    result = examine_store(Visit("central store", "s3://careless", "write, replace and read"))
    assert (result.well, result.code, result.what) == (False, 2, f"s3://careless: {problem}")
    assert "store contract" in result.hint


def test_a_dataset_whose_files_cannot_be_read_is_found(tmp_path: Path) -> None:
    shard = Shard(key="train-0.parquet", size=5, sha256="0" * 64, num_rows=8, rows_sha256="0" * 64)
    manifest = Manifest(
        name="reviews", task="sequence-classification", vocab_size=64, num_labels=2,
        tokenizer=DataFile(key="tokenizer.json", size=10, sha256="0" * 64),
        train=(shard,), evaluation=(shard.replace(key="evaluation-0.parquet"),),
    )  # fmt: skip
    folder = tmp_path / "reviews"
    folder.mkdir()
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    for name in ("train-0.parquet", "tokenizer.json"):
        (folder / name).write_text("bytes")
    result = examine_store(Visit("data", f"file://{tmp_path}", "read", "reviews"))
    assert result.what == f"file://{tmp_path}: reviews lacks its file evaluation-0.parquet"
    (folder / "evaluation-0.parquet").write_text("bytes")
    assert examine_store(Visit("data", f"file://{tmp_path}", "read", "reviews")).well


def test_a_full_disk_is_found(tmp_path: Path) -> None:
    assert examine_disk("here", tmp_path / "not" / "made", least=1).well
    full = examine_disk("here", tmp_path, least=1 << 60)
    assert (full.well, full.code) == (False, 3)


def test_what_a_person_has_to_mend_counts_first() -> None:
    away, wrong = CheckResult(where="a", what="", code=3), CheckResult(where="b", what="", code=2)
    assert worst_code([away, wrong]) == 2
    assert worst_code([away]) == 3
    assert worst_code([CheckResult(where="a", what="", well=True)]) == 0


def test_looking_here_imports_no_torch_and_names_its_version() -> None:
    code = (
        "import datetime, pathlib, sys; from plumbline.night.doctor import look_here\n"
        "report = look_here(pathlib.Path(), datetime.datetime.now(datetime.UTC))\n"
        "print(report.plumbline, report.free_bytes > 0, 'torch' in sys.modules, report.torch)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{__version__} True False {installed_torch()}".strip()


@pytest.mark.parametrize(
    ("url", "refusal", "meaning", "hint"),
    [
        ("gs://b/p", Refusal.CREDENTIALS, "wrong credentials", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://b/p", Refusal.PERMISSIONS, "wrong permissions", "infra/gcp"),
        ("s3://b/p", Refusal.CLOCK, "skewed clock", "time service here"),
        ("s3://b/p", Refusal.PERMISSIONS, "wrong permissions", "infra/aws"),
        ("az://acme/box", Refusal.CREDENTIALS, "wrong credentials", "a clock that is off"),
        ("file:///p", Refusal.PERMISSIONS, "wrong permissions", "write and read file:///p"),
    ],
)
def test_what_a_refusal_means(url: str, refusal: Refusal, meaning: str, hint: str) -> None:
    # The sentence names every reason: it must not decide.
    what = "refused: AccessDenied AuthenticationFailed RequestTimeTooSkewed InvalidToken forbidden Permission 401 403"
    result, how = explain_refusal(AccessError(what, refusal=refusal), url, "write and read")
    assert result == f"{meaning}: {what}"
    assert hint in how


def test_a_refusal_of_an_unknown_code_keeps_its_own_words() -> None:
    assert explain_refusal(AccessError("no: AccessDenied", hint="do this"), "s3://b", "read") == (
        "no: AccessDenied",
        "do this",
    )


@pytest.mark.parametrize(
    ("said", "code", "found"),
    [
        ("NVIDIA A10G, 550.54.15\nNVIDIA A10G, 550.54.15\n", 0, (("NVIDIA A10G", "NVIDIA A10G"), "550.54.15")),
        ("NVIDIA-SMI has failed, no driver\n", 9, ((), "")),
        ("", 0, ((), "")),
    ],
)
def test_one_question_gives_the_gpus_and_their_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, found: object
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{said}'\nexit {code}\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert installed_gpus() == found
