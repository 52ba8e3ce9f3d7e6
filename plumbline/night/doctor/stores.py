"""Checks of a suite's stores: reachability, credentials and permissions."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from plumbline.data.stores import (
    BucketMissingError,
    ObjectExistsError,
    ObjectMissingError,
    PreconditionFailedError,
    RetryPolicy,
    Store,
    open_store,
    read_bytes,
)
from plumbline.night.doctor.checks import CheckResult, explain_refusal, from_error
from plumbline.schema.base import read_model
from plumbline.schema.errors import (
    AccessError,
    ConfigurationError,
    ExitCode,
    InvalidInputError,
    PlumblineError,
    UnavailableError,
)
from plumbline.schema.manifest import Manifest
from plumbline.schema.suite import Suite

LEAST_BYTES = 2 << 30
_QUICK = RetryPolicy(attempts=2)
_SAMPLES = 8
_HINT_CONTRACT = "the service violates the store contract (docs/STAGING.md): use a different service"


class Visit(NamedTuple):
    """Store to check, and the permissions that a round needs there."""

    where: str
    url: str
    needs: Literal["read", "write and read", "write, replace and read"]
    dataset: str = ""


def examine_stores(suite: Suite, state: Path) -> Iterator[CheckResult]:
    """Check local disk space and all stores of a suite, in parallel."""
    yield examine_disk("this machine's disk", state)
    visits = [Visit("central store", suite.store, "write, replace and read")]
    for name, platform in suite.platforms.items():
        datasets = sorted({workload.data for workload in suite.workloads_of(name).values() if workload.data})
        visits += [Visit(f"{name}: data", platform.data, "read", dataset) for dataset in datasets]
        visits.append(Visit(f"{name}: outbox", platform.outbox, "write and read"))
    key = f"doctor/{secrets.token_hex(8)}"  # one for all: where it is there already, two URLs are one place
    with ThreadPoolExecutor(min(16, len(visits)), thread_name_prefix="doctor") as pool:
        yield from pool.map(lambda visit: examine_store(visit, key), visits)


def check_destinations(suite: Suite) -> None:
    """Check the stores for publishing; raise the first problem."""
    urls = {platform.data: f"{name}: data" for name, platform in reversed(suite.platforms.items())}
    visits = [Visit(where, url, "write, replace and read") for url, where in urls.items() if url != suite.store]
    visits = [Visit("central store", suite.store, "write, replace and read"), *reversed(visits)]
    with ThreadPoolExecutor(min(16, len(visits)), thread_name_prefix="destinations") as pool:
        failed = [result for result in pool.map(examine_store, visits) if not result.well]
    if failed:
        kinds = {ExitCode.INCONCLUSIVE: UnavailableError, ExitCode.INVALID: InvalidInputError}
        kind = kinds.get(ExitCode(failed[0].code), ConfigurationError)
        others = f"; also: {', '.join(result.where for result in failed[1:])}" if failed[1:] else ""
        raise kind(f"{failed[0].what}{others}", where=failed[0].where, hint=failed[0].hint)


def examine_disk(where: str, folder: Path, least: int = LEAST_BYTES) -> CheckResult:
    """Check that a disk has enough free space."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    return room(where, shutil.disk_usage(there).free, least, f" at {there}")


def room(where: str, free: int, least: int, at: str = "") -> CheckResult:
    """Check that the free bytes suffice. Pure."""
    text = f"{free / 2**30:.1f} GiB free{at}"
    if free >= least:
        return CheckResult(where=where, what=text, well=True)
    hint = f"free at least {least / 2**30:.0f} GiB"
    return CheckResult(where=where, what=f"disk is full: {text}", hint=hint, code=int(ExitCode.INCONCLUSIVE))


def examine_store(visit: Visit, key: str = "") -> CheckResult:
    """Check one store with a round's operations. `key` is a new object to write, by default a random one."""
    where, url, needs, dataset = visit
    # A new key for each visit: an outbox's identity may lack the permission to replace objects.
    key = key or f"doctor/{secrets.token_hex(8)}"
    try:
        store = open_store(url, policy=_QUICK)
        is_read = needs == "read"
        return _read(where, store, dataset) if is_read else _write(where, store, key, replace="replace" in needs)
    except BucketMissingError as error:
        return _wrong(where, url, error.what, f"create it, or correct the suite: {url}")
    except ObjectMissingError:
        if dataset:
            hint = "publish it: `plumbline deploy SUITE --publish`"
            return _wrong(where, url, f"contains no dataset {dataset}", hint)
        hint = "check that the URL is a single folder or bucket"
        return _wrong(where, url, "does not return the object just written", hint)
    except AccessError as error:
        return _wrong(where, url, *explain_refusal(error, url, needs))
    except PlumblineError as error:
        return from_error(where, error, error.hint or f"check that {url} is correct and reachable from this machine")


def _wrong(where: str, url: str, what: str, hint: str) -> CheckResult:
    # Wrong configuration, which a person has to fix, whatever the error would be during a round.
    return CheckResult(where=where, what=f"{url}: {what}", hint=hint, code=int(ExitCode.USAGE))


def _read(where: str, store: Store, dataset: str) -> CheckResult:
    key = f"{dataset}/manifest.json"
    manifest = read_model(Manifest, read_bytes(store, key), where=f"{store.url}/{key}")
    files = [file for file in manifest.files if file.size]
    # An archived object is listed, and cannot be read: read a byte of some files, from the first to the last.
    for file in [*files[:: max(1, len(files) // _SAMPLES)], *files[-1:]]:
        try:
            with store.open(f"{dataset}/{file.key}", length=1):
                pass
        except ObjectMissingError:
            hint = "publish it again: `plumbline deploy SUITE --publish`"
            return _wrong(where, store.url, f"{dataset} lacks its file {file.key}", hint)
    size = sum(file.size for file in manifest.files)
    text = f"{store.url} contains {dataset}, {len(manifest.files)} files, {size / 2**20:.1f} MiB"
    return CheckResult(where=where, what=text, well=True, size=size)


def _write(where: str, store: Store, key: str, *, replace: bool) -> CheckResult:
    content = secrets.token_bytes(16)
    try:
        info = store.create(key, content)
    except ObjectExistsError:
        what = "is the same place as a different outbox or the central store, under a different name"
        return _wrong(where, store.url, what, "give each platform an outbox of its own")
    # Without its conditions, two controllers would replace each other's records and baselines.
    # Azure refuses it by permission to an identity that may only create.
    if not _is_refused(lambda: store.create(key, b"second"), ObjectExistsError, AccessError):
        return _wrong(where, store.url, "replaces an object on create", _HINT_CONTRACT)
    if replace:
        content, before = secrets.token_bytes(16), info.etag
        store.swap(key, content, if_match=before)
        if not _is_refused(lambda: store.swap(key, b"late", if_match=before), PreconditionFailedError):
            return _wrong(where, store.url, "replaces an object that has changed", _HINT_CONTRACT)
    if read_bytes(store, key) != content:
        return CheckResult(where=where, what=f"{store.url} returns different bytes", code=int(ExitCode.INVALID))
    return CheckResult(where=where, what=f"{store.url} can be written and read", well=True)


def _is_refused(write: Callable[[], object], *errors: type[PlumblineError]) -> bool:
    try:
        write()
    except errors:
        return True
    return False
