"""URLs that are not folders are never treated as empty stores."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from plumbline.cli.main import main
from plumbline.data.stores import read_bytes
from plumbline.data.stores.file import FileStore
from plumbline.data.stores.protocol import ObjectMissingError, StoreUnavailableError
from plumbline.schema.errors import AccessError, ConfigurationError, UnavailableError, record_code


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    result = FileStore("file:///store", tmp_path / "store")
    for key in ("a/one", "a/two", "b/three"):
        result.create(key, b"x")
    return result


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, AccessError), (errno.EIO, StoreUnavailableError), (errno.ENOENT, None)]
)
@pytest.mark.parametrize("inner", [False, True])
def test_a_folder_that_cannot_be_read_is_no_empty_one(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: Any, *, inner: bool
) -> None:
    barred, scandir = tmp_path / "store" / ("a" if inner else ""), os.scandir

    def refuse(folder: Any) -> Any:
        if Path(folder) == barred:
            raise OSError(number, os.strerror(number), str(folder))
        return scandir(folder)

    # As root, no folder's mode refuses anything.
    monkeypatch.setattr(os, "scandir", refuse)
    if kind is None:  # Nothing was written yet, or it went while we looked.
        assert [info.key for info in store.list()] == (["b/three"] if inner else [])
        return
    with pytest.raises(kind):
        list(store.list())


def test_where_nothing_was_written_yet_is_empty(store: FileStore, tmp_path: Path) -> None:
    assert list(FileStore("file:///none", tmp_path / "none").list("rounds/")) == []
    assert list(store.list("c/")) == []
    # An object, and no folder.
    assert list(store.list("a/one/")) == []


@pytest.fixture(params=["a file", "below a file"])
def misled(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    """Return a store whose URL is not, and cannot become, a folder."""
    (tmp_path / "x.toml").write_text("x")
    root = tmp_path / "x.toml" if request.param == "a file" else tmp_path / "x.toml" / "deeper"
    return FileStore("file:///x.toml", root)


def test_a_url_that_leads_to_a_file_is_wrong_configuration(misled: FileStore) -> None:
    why = "the store's folder cannot be created: Not a directory"
    with pytest.raises(ConfigurationError, match=why):
        misled.create("rounds/x", b"x")
    with pytest.raises(ConfigurationError, match=why):
        misled.swap("rounds/x", b"x", if_match=None)
    for look in (misled.stat, lambda key: misled.open(key).__enter__(), lambda key: list(misled.list(f"{key}/"))):
        with pytest.raises(ConfigurationError, match="is not a folder"):
            look("rounds/x")


def test_an_object_in_the_place_of_a_folder_is_no_object_that_exists(store: FileStore) -> None:
    with pytest.raises(ConfigurationError, match="cannot be created: File exists"):
        store.create("a/one/deeper", b"x")
    with pytest.raises(ObjectMissingError):
        store.stat("a/one/deeper")


@pytest.mark.parametrize("command", [["report", "latest"], ["report", "20261120-020000-7f3a"]])
def test_the_command_line_calls_it_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "x.toml").write_text("x")
    url = f"file://{tmp_path}/x.toml"
    assert main([*command, "--store", url]) == 2
    assert capsys.readouterr().err.startswith(f"plumbline: {url}: is not a folder (")


STALE = OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize("call", ["readinto", "seek", "fstat"])
def test_a_share_that_goes_away_under_a_read_is_unavailable(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """NFS answers ESTALE or EIO to any call, not only to `open`."""

    class Stale(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            raise STALE if call == "readinto" else AssertionError(buffer)

        def seek(self, *place: int) -> int:
            if call == "seek":
                raise STALE
            return super().seek(*place)

    def fstat(_: int) -> os.stat_result:
        raise STALE

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode, **_: Stale(path, mode))
        if call == "fstat":
            patch.setattr(os, "fstat", fstat)
        with pytest.raises(StoreUnavailableError, match="Stale file handle"):
            read_bytes(store, "a/one")


def test_a_ring_of_links_is_no_raw_error(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "store" / "ring").symlink_to("ring")
    for use in (store.stat, lambda key: read_bytes(store, key)):
        with pytest.raises(StoreUnavailableError, match="symbolic links"):
            use("ring")


def test_a_folder_that_does_not_exist_is_unavailable_to_readers_and_empty_to_writers(tmp_path: Path) -> None:
    """A share that is not mounted must not make a training `data`, and an outbox is created by its first record."""
    store = FileStore("file:///mnt/share", tmp_path / "share")
    for use in (store.stat, lambda key: read_bytes(store, key)):
        with pytest.raises(
            ObjectMissingError, match=r"the folder does not exist \(hint: mount it, or create it"
        ) as caught:
            use("reviews/manifest.json")
        assert isinstance(caught.value, UnavailableError)
        assert (record_code(caught.value), caught.value.exit_code) == ("unavailable", 3)
    assert list(store.list()) == []
    store.delete("reviews/manifest.json")
    store.swap("pointer", b"x", if_match=None)
    with pytest.raises(ObjectMissingError) as caught:
        store.stat("reviews/manifest.json")
    assert record_code(caught.value) == "data"
