"""Test of a real bucket's store behaviour: `plumbline doctor --store URL`.

Every step works under a new prefix, and removes its objects. A failed step names the required permission.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from plumbline.data.staging.scratch import scratch_folder
from plumbline.data.stores import (
    ObjectExistsError,
    ObjectMissingError,
    PreconditionFailedError,
    RetryPolicy,
    Store,
    open_store,
    presign,
    read_bytes,
)
from plumbline.data.stores.protocol import digest_object
from plumbline.night.doctor.checks import CheckResult, explain_refusal, from_error
from plumbline.schema.digest import digest_bytes, digest_file
from plumbline.schema.errors import AccessError, ExitCode, PlumblineError, Refusal
from plumbline.schema.store_url import Right, kind_at

_QUICK = RetryPolicy(attempts=3)
_WRITERS = 4
_LARGE_BYTES = 65 << 20
"""File size above every service's threshold for multipart uploads."""


class _NonConformingError(PlumblineError):
    """Error: the store violates the interface's rules."""


@dataclass
class _Trial:
    """One test run of the store interface, under its own prefix."""

    store: Store
    prefix: str
    content: bytes = field(default_factory=lambda: secrets.token_bytes(1000))
    etag: str = ""

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def create(self) -> None:
        self.etag = self.store.create(self.key("object"), self.content).etag

    def refuse_second_create(self) -> None:
        self._refused(lambda: self.store.create(self.key("object"), b"other"), ObjectExistsError, "replaces on create")
        self._holds(self.content)

    def stat(self) -> None:
        info = self.store.stat(self.key("object"))
        _demand(
            (info.size, info.etag) == (len(self.content), self.etag), "returns the size or etag of a different object"
        )
        self._refused(
            lambda: self.store.stat(self.key("none")), ObjectMissingError, "describes an object that does not exist"
        )

    def read(self) -> None:
        self._holds(self.content)
        with self.store.open(self.key("object"), offset=100, length=50, if_match=self.etag) as reader:
            buffer = bytearray(60)
            size = reader.readinto(memoryview(buffer))
            _demand(
                bytes(buffer[:size]) == self.content[100 : 100 + size] and 0 < size <= 50, "returns a different range"
            )

    def list(self) -> None:
        found = [info.key for info in self.store.list(self.prefix)]
        _demand(found == [self.key("object")], f"lists {len(found)} objects, but 1 was written")

    def swap(self) -> None:
        before, self.content = self.etag, secrets.token_bytes(500)
        self.etag = self.store.swap(self.key("object"), self.content, if_match=before).etag
        _demand(self.etag != before, "keeps the etag of a replaced object")
        for stale in (before, None):
            swap = lambda: self.store.swap(self.key("object"), b"stale", if_match=stale)  # noqa: B023, E731
            self._refused(swap, PreconditionFailedError, "replaces an object that has changed")
        self._holds(self.content)

        def read_stale() -> None:
            with self.store.open(self.key("object"), if_match=before):
                return

        self._refused(read_stale, PreconditionFailedError, "continues a read of an object that has changed")

    def race(self) -> None:
        def attempt(number: int) -> bool:
            with suppress(ObjectExistsError):
                self.store.create(self.key("race"), b"%d" % number)
                return True
            return False

        with ThreadPoolExecutor(_WRITERS) as pool:
            winners = sum(pool.map(attempt, range(_WRITERS)))
        _demand(winners == 1, f"{winners} of {_WRITERS} writers of one key succeed")

    def large(self) -> None:
        with scratch_folder() as folder:
            path = folder / "large"
            path.write_bytes(secrets.token_bytes(1 << 20) * (_LARGE_BYTES >> 20))
            self.store.create(self.key("large"), path)
            self._refused(lambda: self.store.create(self.key("large"), path), ObjectExistsError, "replaces on create")
            _demand(digest_object(self.store, self.key("large"))[1] == digest_file(path), "returns different bytes")

    def link(self) -> None:
        link = presign(self.store, self.key("object"), 60)
        _demand(link is None or link.startswith(("http://", "https://")), "returns no web link")

    def delete(self) -> None:
        self.clean()
        found = [info.key for info in self.store.list(self.prefix)]
        _demand(not found, f"still lists {len(found)} deleted objects")

    def clean(self) -> None:
        for info in self.store.list(self.prefix):
            self.store.delete(info.key)

    def _holds(self, content: bytes) -> None:
        _demand(
            digest_bytes(read_bytes(self.store, self.key("object"))) == digest_bytes(content), "returns different bytes"
        )

    def _refused(self, action: Callable[[], object], kind: type[PlumblineError], description: str) -> None:
        with suppress(kind):
            action()
            raise _NonConformingError(description, where=self.store.url)


def _demand(holds: bool, problem: str) -> None:
    if not holds:
        raise _NonConformingError(problem)


def examine_conformance(url: str) -> Iterator[CheckResult]:
    """Test the store at `url` until the first failure, then clean up."""
    store = open_store(url, policy=_QUICK)
    trial = _Trial(store, f"plumbline-doctor-{secrets.token_hex(8)}")
    steps: list[tuple[str, Right, Callable[[], None]]] = [
        ("create an object", "create", trial.create),
        ("refuse to create it twice", "create", trial.refuse_second_create),
        ("describe it", "read", trial.stat),
        ("read it, whole and a range", "read", trial.read),
        ("list it", "list", trial.list),
        ("replace it if unchanged", "replace", trial.swap),
        (f"let one of {_WRITERS} writers win", "create", trial.race),
        (f"create a file of {_LARGE_BYTES >> 20} MiB in parts", "create", trial.large),
        ("sign a link", "read", trial.link),
        ("delete the objects", "delete", trial.delete),
    ]
    cleaned = False
    for description, right, step in steps:
        result = _examine(store.url, description, right, step)
        yield result
        if not result.well:
            break
        cleaned = right == "delete"
    if not cleaned:
        yield _examine(store.url, f"remove {trial.prefix}/", "delete", trial.clean)


def _examine(url: str, description: str, right: Right, step: Callable[[], None]) -> CheckResult:
    where, needs = f"{url}: {description}", kind_at(url).rights[right]
    try:
        step()
    except _NonConformingError as error:
        hint = "the service violates the store contract (docs/STAGING.md): use a different service"
        return CheckResult(where=where, what=error.what, hint=hint, code=int(ExitCode.USAGE))
    except AccessError as error:
        message, hint = explain_refusal(error, url, right)
        if error.refusal is not Refusal.KEY:
            hint += f"; required: {needs}"
        return CheckResult(where=where, what=message, hint=hint, code=int(ExitCode.USAGE))
    except PlumblineError as error:
        return from_error(where, error, error.hint or f"required: {needs}")
    return CheckResult(where=where, what=f"works (needs {needs})", well=True)
