"""Every store of a suite: does it answer, do the credentials open it, may we read and write, and is its clock ours."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plumbline.doctor.ailments import Ailment, from_error
from plumbline.errors import AccessError, ExitCode, PlumblineError
from plumbline.schema.suite import Suite
from plumbline.stores import ObjectMissingError, RetryPolicy, Store, open_store, read_bytes

__all__ = ["LEAST_BYTES", "examine_disk", "examine_store", "examine_stores"]

LEAST_BYTES = 2 << 30
_QUICK = RetryPolicy(attempts=2)


def examine_stores(suite: Suite, state: Path) -> Iterator[Ailment]:
    """The disk here, the central store, and each platform's stores, all at once."""
    yield examine_disk("this machine", state)
    asked = [("central store", suite.store, "", True)]
    for name, platform in suite.platforms.items():
        datasets = sorted({workload.data for workload in suite.workloads.values()})
        asked += [(f"{name}: data", platform.data, dataset, False) for dataset in datasets]
        asked.append((f"{name}: outbox", platform.outbox, "", True))
    with ThreadPoolExecutor(min(16, len(asked)), thread_name_prefix="doctor") as pool:
        yield from pool.map(lambda one: examine_store(*one), asked)


def examine_disk(where: str, folder: Path, least: int = LEAST_BYTES) -> Ailment:
    """Whether there is room."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(there).free
    what = f"{free / 2**30:.1f} GiB free at {there}"
    if free >= least:
        return Ailment(where=where, what=what, well=True)
    mend = f"make room: {least / 2**30:.0f} GiB at least"
    return Ailment(where=where, what=f"disk is full: {what}", mend=mend, code=int(ExitCode.INCONCLUSIVE))


def examine_store(where: str, url: str, dataset: str, writes: bool) -> Ailment:
    """One store: read the dataset's manifest, or write an object and read it back."""
    try:
        store = open_store(url, policy=_QUICK)
        return _write(where, store) if writes else _read(where, store, dataset)
    except ObjectMissingError as error:
        mend = f"make the bucket or container of {url}, or publish with `plumbline deploy SUITE --publish`"
        # A person has to make it: wrong configuration, whatever it would be in the middle of a round.
        return from_error(where, error, mend).replace(code=int(ExitCode.USAGE))
    except AccessError as error:
        return from_error(where, error, error.mend or "look at the credentials and the permissions of this environment")
    except PlumblineError as error:
        return from_error(where, error, error.mend or f"is {url} right, and reachable from here?")


def _read(where: str, store: Store, dataset: str) -> Ailment:
    size = len(read_bytes(store, f"{dataset}/manifest.json"))
    return Ailment(where=where, what=f"{store.url} holds {dataset}, manifest of {size} bytes", well=True)


def _write(where: str, store: Store) -> Ailment:
    content = secrets.token_bytes(16)
    # One key that is replaced: the doctor leaves one small object, not one for each visit.
    key = "doctor/visit"
    try:
        etag: str | None = store.stat(key).etag
    except ObjectMissingError:
        etag = None
    store.swap(key, content, if_match=etag)
    if read_bytes(store, key) != content:
        return Ailment(where=where, what=f"{store.url} gives back other bytes", code=int(ExitCode.INVALID))
    return Ailment(where=where, what=f"{store.url} can be written and read", well=True)
