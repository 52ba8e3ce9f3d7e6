"""Request for one upgrade: validated flow parameters, and each platform's order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field, ValidationError

from plumbline.data.stores import open_store, read_bytes
from plumbline.environments.locks import LockFiles
from plumbline.night.dispatch import Job, job_key, record_id
from plumbline.schema.base import Model, Name, Sha256
from plumbline.schema.delimited import decoded
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.store_url import safe_key
from plumbline.schema.suite import Suite
from plumbline.schema.suite_file import without_credentials
from plumbline.upgrade.campaign import UpgradeOptions
from plumbline.upgrade.orders import UpgradeOrder, nonce_of, suite_of
from plumbline.upgrade.session import workload_of

_SPARE_SECONDS = 600.0
"""Seconds after the budget, for the last trial and the report."""

MAX_LOCK_BYTES = 32 << 20
LOCK_FILES_NAME = "lock-files.json"
"""The name of a candidate whose text is a `LockFiles` document: a lock with the files that it includes."""

_WHERE = "the flow run's parameters"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*(?::[0-9]+)?"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?@sha256:[0-9a-f]{{64}}"
)
"""A reference of the OCI distribution specification, with a digest: a tag may name a different image tomorrow."""
MAX_INLINE_BYTES = 256 << 10
"""A longer text goes by its address: Prefect accepts 512 KiB of parameters for one flow run, in JSON."""
_MAX_TEXT = 400_000
"""Characters of a text by value."""


class Candidate(Model):
    """Candidate as a flow parameter: lock text, lock URL with digest, or container image. May be empty."""

    name: str = Field(default="requirements.txt", max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    """The file name: it decides the format."""
    text: str = Field(default="", max_length=_MAX_TEXT)
    url: str = Field(default="", max_length=2000)
    """Address below one of the suite's `candidates`; `sha256` is required with it."""
    sha256: Sha256 | None = None
    """Digest of the text's bytes, as `sha256sum` prints it."""
    image: str = Field(default="", max_length=500)
    """Instead of a lock: the image to train in, `REPOSITORY@sha256:DIGEST`."""

    @property
    def is_given(self) -> bool:
        """Return whether the candidate is a lock or image, not empty."""
        return bool(self.text or self.url or self.image)


def read_candidate(candidate: Candidate, suite: Suite, download: Callable[[str, int], bytes]) -> LockFiles:
    """Read the candidate lock, verifying its digest.

    `download(url, max_bytes)` reads an `https://` address. Raise `ConfigurationError` if text, address and digest
    contradict each other, or if the suite does not list the address. The sender of an event may not read what this
    machine may: no error shows the document's digest or content.
    """
    if bool(candidate.text) == bool(candidate.url):
        raise ConfigurationError("give either its text or its url", where=_WHERE, key="candidate")
    if candidate.url and candidate.sha256 is None:
        hint = "add the digest that `sha256sum LOCK` prints"
        raise ConfigurationError("is missing beside a url", where=_WHERE, key="candidate.sha256", hint=hint)
    try:
        without_credentials(candidate.url)
    except ValueError as error:
        raise ConfigurationError(str(error), where=_WHERE, key="candidate.url") from error
    data = _read_listed(candidate.url, suite, download) if candidate.url else candidate.text.encode()
    if candidate.sha256 not in (None, digest_bytes(data)):
        what = "is not the digest of the lock"
        hint = "send the digest that `sha256sum LOCK` prints for this lock"
        raise ConfigurationError(what, where=_WHERE, key="candidate.sha256", hint=hint)
    try:
        text = decoded(data).replace("\r\n", "\n")
        if candidate.name == LOCK_FILES_NAME:
            return LockFiles.model_validate_json(text)
        return LockFiles(name=candidate.name, files={candidate.name: text})
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            "not UTF-8 text", where=_WHERE, key="candidate", hint="save the lock as UTF-8"
        ) from error
    except ValidationError as error:
        what = f"not the document of lock files that {LOCK_FILES_NAME} names"
        raise ConfigurationError(what, where=_WHERE, key="candidate") from error


def read_image(candidate: Candidate) -> str:
    """Return the candidate image's reference.

    Raise `ConfigurationError` unless it is pinned by a digest, and given without a lock.
    """
    if candidate.text or candidate.url or candidate.sha256:
        raise ConfigurationError("give either a lock or an image", where=_WHERE, key="candidate")
    return check_image(candidate.image, where=_WHERE, key="candidate.image")


def check_image(reference: str, *, where: str = "", key: str) -> str:
    """Return an image reference; raise unless pinned by digest.

    Raise `ConfigurationError` otherwise.
    """
    if _IMAGE.fullmatch(reference) is None:
        hint = "REPOSITORY@sha256:DIGEST, as `docker buildx imagetools inspect IMAGE` prints it"
        what = f"{reference[:200]!r} is not an image pinned by its digest"
        raise ConfigurationError(what, where=where, key=key, hint=hint)
    return reference


def _read_listed(url: str, suite: Suite, download: Callable[[str, int], bytes]) -> bytes:
    """Download an object from an address that the suite allows."""
    for prefix in (*suite.candidates, command_locks(suite)):
        key = url.removeprefix(f"{prefix}/")
        # An escaped dot may lead out of the prefix.
        if key == url or "%" in key:
            continue
        try:
            safe_key(key)
            if prefix.startswith("https://"):
                return download(url, MAX_LOCK_BYTES)
            return read_bytes(open_store(prefix), key, max_bytes=MAX_LOCK_BYTES)
        except (ValueError, InvalidInputError) as error:
            what, hint = getattr(error, "what", str(error)), getattr(error, "hint", "")
            raise ConfigurationError(what, where=_WHERE, key="candidate.url", hint=hint) from error
    hint = "send the lock's text, or list the address in `candidates` of the suite"
    raise ConfigurationError(
        "is not below an address that the suite lists", where=_WHERE, key="candidate.url", hint=hint
    )


def command_locks(suite: Suite) -> str:
    """Return the URL folder for locks too large for a flow parameter."""
    return f"{suite.store}/upgrades/locks"


class UpgradeRequest(Model):
    """Upgrade candidate, with the suite's platforms and workload that judge it."""

    upgrade_id: Name
    suite: Suite
    candidate: Candidate
    platforms: tuple[str, ...] = ()
    """As asked for; empty for all platforms of the suite."""
    workload: str = ""
    """As asked for; empty for the suite's first with a probe."""
    options: UpgradeOptions = UpgradeOptions()

    @property
    def chosen_platforms(self) -> tuple[str, ...]:
        """Return the platforms to judge on, in suite order.

        Raise `ConfigurationError` for unknown names.
        """
        if unknown := sorted(set(self.platforms) - self.suite.platforms.keys()):
            hint = f"one of {', '.join(self.suite.platforms)}"
            raise ConfigurationError(f"unknown: {', '.join(unknown)}", where="parameters", key="platforms", hint=hint)
        workload = self.chosen_workload
        trained = [name for name in self.suite.platforms if workload in self.suite.workloads_of(name)]
        if others := sorted(set(self.platforms) - set(trained)):
            what = f"{', '.join(others)}: does not train {workload}"
            raise ConfigurationError(what, where="parameters", key="platforms", hint=f"one of {', '.join(trained)}")
        return tuple(name for name in trained if not self.platforms or name in self.platforms)

    @property
    def chosen_workload(self) -> str:
        """Return the workload to train.

        Raise `ConfigurationError` for an unknown name.
        """
        return workload_of(self.suite, self.workload or None)


@dataclass(frozen=True, slots=True)
class LockUpgrade:
    """One candidate lock, with the platforms that judge it."""

    request: UpgradeRequest
    lock: LockFiles
    secret: str

    def job(self, platform: str) -> Job:
        """Return the dispatch job of a platform."""
        chosen, request = self.request.suite.platforms[platform], self.request
        return Job(
            key=job_key(request.suite.name, request.upgrade_id, platform, "upgrade"), platform=platform,
            retries=chosen.retries, start_seconds=chosen.start_seconds,
            run_seconds=request.options.seconds + _SPARE_SECONDS,
        )  # fmt: skip

    def order(self, platform: str, attempt: int) -> UpgradeOrder:
        """Return the order that a worker receives for this attempt."""
        name, request = record_id(self.job(platform).key, attempt), self.request
        workload = request.chosen_workload
        return UpgradeOrder(
            platform=platform, outbox=request.suite.platforms[platform].outbox, record_id=name,
            upgrade_id=request.upgrade_id, attempt=attempt, nonce=nonce_of(self.secret, name),
            suite=suite_of(request.suite, platform, workload), workload=workload, lock_sha256=self.lock.digest,
            **request.options.to_json(),
        )  # fmt: skip
