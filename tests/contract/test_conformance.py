"""`plumbline doctor --store URL`: correct stores pass, each wrong store fails its step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plumbline.data.stores import ObjectInfo, open_store
from plumbline.night.doctor import conformance
from plumbline.night.doctor.conformance import examine_conformance
from plumbline.schema.errors import AccessError, Refusal
from tests.commands import error_line, run
from tests.contract.conftest import ACCOUNT, give_google, make_bucket, make_container, marked
from tests.faultserver.google import GoogleServer
from tests.memory_store import MemoryStore


@pytest.fixture(params=marked("file", "s3", "s3-locked", "az", "gs"))
def url(request: pytest.FixtureRequest, clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Return a bucket of each service that contains a foreign object."""
    with GoogleServer() as google:
        if request.param == "file":
            address = f"file://{tmp_path}/store"
        elif request.param == "gs":
            give_google(clean_environment, google, tmp_path)
            address = "gs://bucket/team"
        elif request.param == "az":
            address = f"az://{ACCOUNT}/conform/team"
            make_container(clean_environment, request.getfixturevalue("azurite"), "conform")
        else:
            name, lock = f"conform-{request.param}", {"ObjectLockEnabledForBucket": request.param == "s3-locked"}
            make_bucket(clean_environment, request.getfixturevalue("moto"), name, **lock)
            address = f"s3://{name}/team"
        open_store(address).create("theirs", b"x")
        yield address


@pytest.mark.first(2)
def test_a_right_store_passes_and_keeps_what_is_not_ours(url: str) -> None:
    results_found = list(examine_conformance(url))
    assert [result for result in results_found if not result.well] == []
    assert len(results_found) == 10
    assert [info.key for info in open_store(url).list()] == ["theirs"]
    assert all("needs" in result.what for result in results_found)


class Replacing(MemoryStore):
    """Store that ignores If-None-Match."""

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        self.delete(key)
        return super().create(key, data)


class Blind(MemoryStore):
    """Ignores If-Match."""

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        assert if_match != ""
        return super().swap(key, data, if_match=self._objects[key][0].etag)


class Forgetful(MemoryStore):
    """Lists late."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter([*super().list(prefix)][1:])


class Damaging(MemoryStore):
    """Store that keeps wrong bytes."""

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        return super().create(key, b"?" * len(data if isinstance(data, bytes) else data.read_bytes()))


class Undeletable(MemoryStore):
    """Allows no delete."""

    def delete(self, key: str) -> None:
        raise AccessError("no", where=self.url, key=key, refusal=Refusal.PERMISSIONS)


@pytest.mark.parametrize(
    ("store", "step", "words"),
    [
        (Replacing, "refuse to create it twice", "replaces on create"),
        (Blind, "replace it if unchanged", "replaces an object that has changed"),
        (Forgetful, "list it", "lists 0 objects"),
        (Damaging, "refuse to create it twice", "returns different bytes"),
        (Undeletable, "delete the objects", "wrong permissions"),
    ],
)
def test_a_wrong_store_is_found_at_its_step(
    monkeypatch: pytest.MonkeyPatch, store: type[MemoryStore], step: str, words: str
) -> None:
    monkeypatch.setattr(conformance, "open_store", lambda *_, **__: store("s3://bucket"))
    monkeypatch.setattr(conformance, "_LARGE_BYTES", 1 << 20)
    (bad, *rest) = [result for result in examine_conformance("s3://bucket") if not result.well]
    assert bad.where == f"s3://bucket: {step}"
    assert words in bad.what
    assert bad.code == 2
    assert bad.hint
    if store is Undeletable:
        assert "s3:DeleteObject" in bad.hint
        assert rest, "what is left behind is said"


def test_the_command_prints_one_line_a_step_or_one_document(tmp_path: Path) -> None:
    doctor = (sys.executable, "-m", "plumbline", "doctor")
    done = run(*doctor, "--store", f"file://{tmp_path}/store")
    assert (len(done.stdout.splitlines()), done.stderr) == (11, "")
    done = run(*doctor, "--store", f"file://{tmp_path}/store", "--json")
    assert len(json.loads(done.stdout)["checks"]) == 10
    assert "use either SUITE or --store URL" in run(*doctor, code=2).stderr
    assert error_line(*doctor, "--store", "s3://h:1/x")
