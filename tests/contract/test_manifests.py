"""Wrong manifests are refused by name; no file is written outside the cache."""

from __future__ import annotations

import contextlib
import json
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.data.staging import Cache, Stager
from plumbline.data.stores import Store, open_store
from plumbline.schema.errors import CorruptDataError, DiskFullError, InvalidInputError, PlumblineError
from tests.contract.datasets import assert_cache_is_right, make_dataset
from tests.memory_store import MemoryStore

DATASET = make_dataset(3, 500)
TRUE: dict[str, Any] = DATASET.manifest.to_json()


def stage(store: Store, cache: Cache) -> None:
    with Stager(store, "reviews", cache, connections=2) as stager:
        stager.start(stager.manifest.files)
        for file in stager.manifest.files:
            path = stager.wait(file)
            assert path.resolve().is_relative_to(cache.folder.resolve())
            assert path.stat().st_size == file.size


def store_with(manifest: bytes) -> MemoryStore:
    store = MemoryStore()
    DATASET.put(lambda key, data: store.create(key, manifest if key.endswith("manifest.json") else data))
    return store


def lie(**changes: Any) -> bytes:
    """Return the correct manifest with changed fields of its first shard."""
    made = deepcopy(TRUE)
    made["train"][0].update(changes)
    return json.dumps(made).encode()


LIES = [
    (lie(key="../outside"), InvalidInputError, r"train\.0\.key"),
    (lie(key="a/../../outside"), InvalidInputError, r"train\.0\.key"),
    (lie(key="/etc/passwd"), InvalidInputError, r"train\.0\.key"),
    (lie(key="C:/windows"), InvalidInputError, r"train\.0\.key"),
    (lie(key="a\\..\\b"), InvalidInputError, r"train\.0\.key"),
    (lie(key="new\nline"), InvalidInputError, r"train\.0\.key"),
    (lie(key=TRUE["train"][1]["key"]), InvalidInputError, "appears twice"),
    (lie(key=TRUE["train"][1]["key"].upper()), InvalidInputError, "appears twice"),
    (lie(size=1 << 60), InvalidInputError, r"train\.0\.size"),
    (lie(size=-1), InvalidInputError, r"train\.0\.size"),
    (lie(size=1 << 40), DiskFullError, "are needed"),
    (lie(sha256="../../etc/passwd"), InvalidInputError, r"train\.0\.sha256"),
    (lie(sha256="A" * 64), InvalidInputError, r"train\.0\.sha256"),
    (lie(sha256="0" * 64), CorruptDataError, "00000.*does not match the digest"),
    (lie(size=499), CorruptDataError, "00000.*is 500 bytes long, the manifest says 499"),
    (lie(sha256=TRUE["train"][1]["sha256"], size=7), InvalidInputError, "different length"),
    (lie(num_rows=0), InvalidInputError, r"train\.0\.num_rows"),
    (lie(surprise=1), InvalidInputError, r"train\.0\.surprise: unknown key"),
    (json.dumps({**TRUE, "schema_version": 2}).encode(), InvalidInputError, "schema_version"),
    (json.dumps({**TRUE, "name": "others"}).encode(), InvalidInputError, "is the manifest of 'others'"),
    (json.dumps({**TRUE, "train": []}).encode(), InvalidInputError, "train"),
    (b"", InvalidInputError, "manifest.json"),
    (b"\xff\xfe", InvalidInputError, "manifest.json"),
    (b"[" * 100_000, InvalidInputError, "manifest.json"),
    (b'{"vocab_size": NaN}', InvalidInputError, "manifest.json"),
]


@pytest.mark.parametrize(("manifest", "kind", "words"), LIES, ids=range(len(LIES)))
def test_a_lie_is_refused_by_name(tmp_path: Path, manifest: bytes, kind: type[PlumblineError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        stage(store_with(manifest), Cache(tmp_path / "cache", free_bytes=lambda _: 1 << 39))
    assert type(caught.value) is kind
    assert [path.name for path in tmp_path.iterdir()] in ([], ["cache"])


def test_an_object_that_is_a_link_out_of_the_store_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 500)
    store = open_store(f"file://{tmp_path}/store")
    DATASET.put(store.create)
    shard = tmp_path / "store/reviews/train/00000.parquet"
    shard.unlink()
    shard.symlink_to(secret)
    with pytest.raises(InvalidInputError, match="link that leaves the store"):
        stage(store, Cache(tmp_path / "cache"))


def test_a_link_planted_in_the_cache_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    parts = tmp_path / "cache/parts"
    parts.mkdir(parents=True)
    (parts / f"{TRUE['train'][0]['sha256']}.part").symlink_to(victim)
    with pytest.raises(PlumblineError):
        stage(store_with(json.dumps(TRUE).encode()), Cache(tmp_path / "cache"))
    assert victim.read_bytes() == b"precious"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield every place in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, entry in inner for place in places(entry, (*path, key)))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["../x", "/x", "a" * 600, "0" * 64, 1 << 41, -1, TRUE["train"][1]["key"], TRUE["tokenizer"]]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return the correct manifest with a few places changed, removed or cut."""
    made = deepcopy(TRUE)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(made)[1:] or [()]))
        if not place:
            break
        parent = made
        for key in place[:-1]:
            parent = parent[key]
        if draw(st.booleans()):
            parent[place[-1]] = draw(JSON)
        else:
            del parent[place[-1]]
    text = json.dumps(made).encode()
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_no_damage_gets_past(manifest: bytes) -> None:
    """Refused with an error of ours, or staged right; nothing outside the cache, nothing wrong in it."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "cache", free_bytes=lambda _: 1 << 39)
        with contextlib.suppress(InvalidInputError, DiskFullError):
            stage(store_with(manifest), cache)
        assert_cache_is_right(cache)
        assert {path.name for path in Path(folder).iterdir()} <= {"cache"}
