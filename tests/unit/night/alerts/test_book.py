"""The alert state in a store: no writer loses what a concurrent writer added."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from plumbline.data.stores import read_bytes
from plumbline.night.alerts import AlertBook, AlertState, after_failure, update
from plumbline.night.central import CentralStore
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.verdict import RoundVerdict
from tests.memory_store import MemoryStore

NOW = datetime(2026, 11, 20, 2, tzinfo=UTC)


def add_round(name: str) -> Callable[[AlertState], AlertState]:
    return lambda state: state.replace(rounds=(*state.rounds, name))


def make_book(store: MemoryStore, suite: str = "nightly") -> AlertBook:
    return AlertBook(CentralStore(store), suite)


def test_a_change_is_kept_for_the_next_controller_and_for_this_suite_only() -> None:
    store = MemoryStore()
    assert make_book(store).read() == AlertState()
    assert make_book(store).change(add_round("a")).rounds == ("a",)
    assert make_book(store).change(add_round("b")).rounds == ("a", "b")
    assert make_book(store).read().rounds == ("a", "b")
    assert [info.key for info in store.list()] == ["alerts/nightly.json"]
    assert b'"schema_version":1' in read_bytes(store, "alerts/nightly.json")
    assert make_book(store, "weekly").read() == AlertState()


def test_a_state_that_stays_the_same_is_not_written() -> None:
    store = MemoryStore()
    assert make_book(store).change(lambda state: state) == AlertState()
    assert list(store.list()) == []
    make_book(store).change(add_round("a"))
    etag = store.stat("alerts/nightly.json").etag
    assert make_book(store).change(lambda state: state.replace(due=())).rounds == ("a",)
    assert store.stat("alerts/nightly.json").etag == etag


def test_a_damaged_state_is_an_error_and_no_change_overwrites_it() -> None:
    store = MemoryStore()
    store.create("alerts/nightly.json", b"cut off {")
    with pytest.raises(InvalidInputError, match=r"alerts/nightly\.json"):
        make_book(store).change(add_round("a"))
    assert read_bytes(store, "alerts/nightly.json") == b"cut off {"


def test_a_repair_keeps_the_damaged_state_aside_and_begins_with_an_empty_one() -> None:
    store = MemoryStore()
    store.create("alerts/nightly.json", b"cut off {")
    line = make_book(store).repair()
    (aside,) = [info.key for info in store.list("alerts/damaged/")]
    assert read_bytes(store, aside) == b"cut off {"
    assert f"memory://test/{aside}" in line
    assert "alerts/nightly.json: not JSON" in line
    assert make_book(store).change(add_round("a")).rounds == ("a",)
    assert make_book(store).repair() == ""
    assert make_book(store).read().rounds == ("a",)


def test_a_state_that_was_never_written_needs_no_repair() -> None:
    store = MemoryStore()
    assert make_book(store).repair() == ""
    assert list(store.list()) == []


def test_keys_of_a_newer_release_are_read_over_and_kept() -> None:
    store = MemoryStore()
    message = {"id": "1", "block": "a/b", "event": "drift", "subject": "", "body": "", "created": NOW.isoformat()}
    state = {
        "open": {"azure/loss": {"event": "drift", "since_round": "r", "since": NOW.isoformat(), "assignee": "ann"}},
        "pending": [{**message, "thread": 7}],
        "silenced": ["azure"],
    }
    store.create("alerts/nightly.json", json.dumps(state).encode())
    book = make_book(store)
    assert book.repair() == ""
    book.change(lambda state: after_failure(state, state.pending[0], "refused", NOW, is_late=False))
    book.change(lambda state: update(state, RoundVerdict(round="r1", suite="nightly", verdict="pass"), (), NOW))
    kept = json.loads(read_bytes(store, "alerts/nightly.json"))
    assert kept["silenced"] == ["azure"]
    assert kept["open"]["azure/loss"]["assignee"] == "ann"
    assert (kept["pending"][0]["thread"], kept["pending"][0]["failures"]) == (7, 1)
