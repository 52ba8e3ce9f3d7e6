"""Range requests: exact ranges, number of connections, and recovery."""

from __future__ import annotations

import random

import pytest

from plumbline.data.stores import PreconditionFailedError, RetryingStore, Store, StoreUnavailableError
from plumbline.schema.errors import UnavailableError
from tests.contract.test_faults import open_on, root_of
from tests.contract.test_stores import read_from
from tests.faultserver.faults import Change, Fault, FullAnswer, Reset, Stall, Status, Truncate, WrongLength
from tests.faultserver.server import FaultServer

SIZE = 200_000
DATA = random.Random(5).randbytes(SIZE)


@pytest.fixture(params=["s3", "az", "gs"])
def store(request: pytest.FixtureRequest, clean_environment: pytest.MonkeyPatch, fault_server: FaultServer) -> Store:
    """Return a store of each SDK on the faulty server, with one object."""
    opened = open_on(request.param, clean_environment, fault_server)
    fault_server.objects[f"{root_of(opened)}/key"] = DATA
    return opened


@pytest.fixture(params=["s3", "az", "gs"])
def patient_store(
    request: pytest.FixtureRequest, clean_environment: pytest.MonkeyPatch, fault_server: FaultServer
) -> Store:
    opened = open_on(request.param, clean_environment, fault_server, patient=True)
    fault_server.objects[f"{root_of(opened)}/key"] = DATA
    return opened


def asked(server: FaultServer) -> list[tuple[int, int | None]]:
    return [(entry.offset, entry.end) for entry in server.served]


def test_range_after_range_goes_over_one_connection(patient_store: Store, fault_server: FaultServer) -> None:
    for start in range(0, SIZE, 20_000):
        assert read_from(patient_store, "key", start, length=20_000)[0] == DATA[start : start + 20_000]
    assert asked(fault_server) == [(start, start + 20_000) for start in range(0, SIZE, 20_000)]
    assert fault_server.connections == 1


@pytest.mark.parametrize(
    "fault", [Truncate(30_000), Reset(30_000), Stall(30_000)], ids=lambda fault: type(fault).__name__
)
def test_a_range_that_breaks_off_goes_on_where_it_was_and_ends_where_it_should(
    store: Store, fault_server: FaultServer, fault: Fault
) -> None:
    fault_server.faults.append(fault)
    result, info = read_from(store, "key", 50_000, length=100_000)
    assert (result, info.size) == (DATA[50_000:150_000], SIZE)
    first, second = asked(fault_server)
    assert first == (50_000, 150_000)
    # A reset may discard all bytes that had arrived.
    assert 50_000 <= second[0] <= 80_000
    assert second[1] == 150_000


@pytest.mark.parametrize(
    "fault", [FullAnswer(), Status(503), WrongLength(by=-1)], ids=lambda fault: type(fault).__name__
)
@pytest.mark.parametrize("offset", [0, 50_000])
def test_an_answer_of_another_range_is_never_taken_for_the_right_one(
    store: Store, fault_server: FaultServer, fault: Fault, offset: int
) -> None:
    fault_server.faults.append(fault)
    assert read_from(store, "key", offset, length=100_000)[0] == DATA[offset : offset + 100_000]
    assert not fault_server.faults
    # What is left of an answer is never read as the next one.
    assert read_from(store, "key", 150_000, length=9)[0] == DATA[150_000:150_009]


def test_an_object_that_changes_within_a_range_is_not_read_on(store: Store, fault_server: FaultServer) -> None:
    fault_server.faults.extend([Truncate(10_000), Change()])
    with pytest.raises(PreconditionFailedError):
        read_from(store, "key", 50_000, length=100_000)


def test_a_range_that_never_comes_is_given_up(store: Store, fault_server: FaultServer) -> None:
    fault_server.faults.extend([Truncate(0)] * 5)
    with pytest.raises(UnavailableError, match="gave up after 5 attempts"):
        read_from(store, "key", 50_000, length=100_000)
    assert isinstance(store, RetryingStore)
    fault_server.faults.append(Truncate(99_999))
    with pytest.raises(StoreUnavailableError, match=r"1 bytes early|the transfer broke off"):
        read_from(store.inner, "key", 50_000, length=100_000)
