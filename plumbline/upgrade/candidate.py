"""Candidate as a parameter of a flow.

It is a lock (by its text, or by address and digest) or a container image.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pydantic import Field, ValidationError

from plumbline.digest import digest_bytes
from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.schema.base import Model, Sha256, first_problem
from plumbline.schema.suite_values import without_credentials
from plumbline.stores import open_store, read_bytes
from plumbline.upgrade.locks import LockFiles, decode_lock

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
    """Lock or image to upgrade to; empty means no candidate."""

    name: str = Field(default="requirements.txt", max_length=200)
    """The file name: it decides the format."""
    text: str = Field(default="", max_length=_MAX_TEXT)
    url: str = Field(default="", max_length=2000)
    """`https://`, or the address of an object in a store; `sha256` is required with it."""
    sha256: Sha256 | None = None
    """Digest of the text's bytes, as `sha256sum` prints it."""
    image: str = Field(default="", max_length=500)
    """Instead of a lock: the image to train in, `REPOSITORY@sha256:DIGEST`."""

    @property
    def is_given(self) -> bool:
        """Return whether the candidate names a lock or an image."""
        return bool(self.text or self.url or self.image)


def read_candidate(candidate: Candidate, download: Callable[[str, int], bytes]) -> LockFiles:
    """Return the candidate lock, checked by its digest.

    `download(url, max_bytes)` reads an `https://` address. Raise `ConfigurationError` if text, address and digest
    contradict each other.
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
    data = _download(candidate.url, download) if candidate.url else candidate.text.encode()
    if candidate.sha256 not in (None, digest_bytes(data)):
        what = f"the lock has the digest {digest_bytes(data)}"
        hint = "send the digest that `sha256sum LOCK` prints for this lock"
        raise ConfigurationError(what, where=_WHERE, key="candidate.sha256", hint=hint)
    try:
        text = decode_lock(data)
        if candidate.name == LOCK_FILES_NAME:
            return LockFiles.model_validate_json(text)
        return LockFiles(name=candidate.name, files={candidate.name: text})
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            "not UTF-8 text", where=_WHERE, key="candidate", hint="save the lock as UTF-8"
        ) from error
    except ValidationError as error:
        key, reason = first_problem(error)
        raise ConfigurationError(reason, where=_WHERE, key=f"candidate.{key}") from error


def read_image(candidate: Candidate) -> str:
    """Return the candidate image.

    Raise `ConfigurationError` unless it is pinned by a digest, and given without a lock.
    """
    if candidate.text or candidate.url or candidate.sha256:
        raise ConfigurationError("give either a lock or an image", where=_WHERE, key="candidate")
    return check_image(candidate.image, where=_WHERE, key="candidate.image")


def check_image(reference: str, *, where: str = "", key: str) -> str:
    """Return the image reference if it is pinned by digest.

    Raise `ConfigurationError` otherwise.
    """
    if _IMAGE.fullmatch(reference) is None:
        hint = "REPOSITORY@sha256:DIGEST, as `docker buildx imagetools inspect IMAGE` prints it"
        what = f"{reference[:200]!r} is not an image pinned by its digest"
        raise ConfigurationError(what, where=where, key=key, hint=hint)
    return reference


def _download(url: str, download: Callable[[str, int], bytes]) -> bytes:
    if url.startswith("https://"):
        return download(url, MAX_LOCK_BYTES)
    folder, _, key = url.rpartition("/")
    if "://" not in folder or folder.endswith(":/"):
        hint = "write https://HOST/PATH, or the address of an object such as s3://BUCKET/locks/requirements.txt"
        raise ConfigurationError("not the address of an object", where=_WHERE, key="candidate.url", hint=hint)
    try:
        return read_bytes(open_store(folder), key, max_bytes=MAX_LOCK_BYTES)
    except InvalidInputError as error:
        raise ConfigurationError(error.what, where=_WHERE, key="candidate.url", hint=error.hint) from error
