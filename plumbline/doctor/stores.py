"""Every store of a suite: does it answer, do the credentials open it, and do they allow what a round does there."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from plumbline.doctor.checks import CheckResult, from_error
from plumbline.doctor.refusals import tell_refusal
from plumbline.errors import AccessError, ExitCode, PlumblineError
from plumbline.schema.base import read_model
from plumbline.schema.manifest import Manifest
from plumbline.schema.suite import Suite
from plumbline.stores import ObjectMissingError, RetryPolicy, Store, open_store, read_bytes

__all__ = ["LEAST_BYTES", "Visit", "examine_disk", "examine_store", "examine_stores", "room"]

LEAST_BYTES = 2 << 30
_QUICK = RetryPolicy(attempts=2)


class Visit(NamedTuple):
    """A store, and what a round has to be allowed there."""

    where: str
    url: str
    needs: Literal["read", "write and read", "write, replace and read"]
    dataset: str = ""


def examine_stores(suite: Suite, state: Path) -> Iterator[CheckResult]:
    """The disk here, the central store, and each platform's stores, all at once."""
    yield examine_disk("this machine's disk", state)
    visits = [Visit("central store", suite.store, "write, replace and read")]
    for name, platform in suite.platforms.items():
        datasets = sorted({workload.data for workload in suite.workloads.values()})
        visits += [Visit(f"{name}: data", platform.data, "read", dataset) for dataset in datasets]
        visits.append(Visit(f"{name}: outbox", platform.outbox, "write and read"))
    with ThreadPoolExecutor(min(16, len(visits)), thread_name_prefix="doctor") as pool:
        yield from pool.map(examine_store, visits)


def examine_disk(where: str, folder: Path, least: int = LEAST_BYTES) -> CheckResult:
    """Whether there is room."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    return room(where, shutil.disk_usage(there).free, least, f" at {there}")


def room(where: str, free: int, least: int, at: str = "") -> CheckResult:
    """Whether what is free is enough. Pure."""
    what = f"{free / 2**30:.1f} GiB free{at}"
    if free >= least:
        return CheckResult(where=where, what=what, well=True)
    hint = f"make room: {least / 2**30:.0f} GiB at least"
    return CheckResult(where=where, what=f"disk is full: {what}", hint=hint, code=int(ExitCode.INCONCLUSIVE))


def examine_store(visit: Visit) -> CheckResult:
    """One store: do there what a round does."""
    where, url, needs, dataset = visit
    try:
        store = open_store(url, policy=_QUICK)
        return _read(where, store, dataset) if needs == "read" else _write(where, store, replace="replace" in needs)
    except ObjectMissingError as error:
        if error.what == "no such object" and not dataset:
            return _wrong(where, url, "does not give back what was just written", "is it this folder or bucket alone?")
        if error.what == "no such object":
            return _wrong(where, url, f"holds no dataset {dataset}", "publish it: `plumbline deploy SUITE --publish`")
        return _wrong(where, url, error.what, f"make it, or correct the suite: {url}")
    except AccessError as error:
        return _wrong(where, url, *tell_refusal(error, url, needs))
    except PlumblineError as error:
        return from_error(where, error, error.hint or f"is {url} right, and reachable from here?")


def _wrong(where: str, url: str, what: str, hint: str) -> CheckResult:
    # A person has to mend it: wrong configuration, whatever it would be in the middle of a round.
    return CheckResult(where=where, what=f"{url}: {what}", hint=hint, code=int(ExitCode.USAGE))


def _read(where: str, store: Store, dataset: str) -> CheckResult:
    key = f"{dataset}/manifest.json"
    manifest = read_model(Manifest, read_bytes(store, key), where=f"{store.url}/{key}")
    size = sum(file.size for file in manifest.files)
    what = f"{store.url} holds {dataset}, {len(manifest.files)} files, {size / 2**20:.1f} MiB"
    return CheckResult(where=where, what=what, well=True, size=size)


def _write(where: str, store: Store, *, replace: bool) -> CheckResult:
    # A key of its own for each visit: an identity that may write an outbox need not be allowed to replace.
    key, content = f"doctor/{secrets.token_hex(8)}", secrets.token_bytes(16)
    info = store.create(key, content)
    if replace:
        content = secrets.token_bytes(16)
        store.swap(key, content, if_match=info.etag)
    if read_bytes(store, key) != content:
        return CheckResult(where=where, what=f"{store.url} gives back other bytes", code=int(ExitCode.INVALID))
    return CheckResult(where=where, what=f"{store.url} can be written and read", well=True)
