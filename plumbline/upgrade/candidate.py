"""The candidate lock as a flow's parameter: its text, or an address and the digest of the text there."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field, ValidationError

from plumbline.digest import digest_bytes
from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.schema.base import Model, Sha256, first_problem
from plumbline.stores import open_store, read_bytes
from plumbline.upgrade.locks import LockFiles

__all__ = ["LOCK_FILES_NAME", "MAX_INLINE_BYTES", "MAX_LOCK_BYTES", "Candidate", "read_candidate"]

MAX_LOCK_BYTES = 32 << 20
LOCK_FILES_NAME = "lock-files.json"
"""The name of a candidate whose text is a `LockFiles` document: a lock with the files that it includes."""

_WHERE = "the flow run's parameters"
MAX_INLINE_BYTES = 256 << 10
"""A longer text goes by its address: Prefect accepts 512 KiB of parameters for one flow run, in JSON."""
_MAX_TEXT = 400_000
"""Characters of a text by value."""


class Candidate(Model):
    """The lock to upgrade to; an empty one is no candidate."""

    name: str = Field(default="requirements.txt", max_length=200)
    """The file name: it decides the format."""
    text: str = Field(default="", max_length=_MAX_TEXT)
    url: str = Field(default="", max_length=2000)
    """`https://`, or the address of an object in a store; `sha256` is required with it."""
    sha256: Sha256 | None = None
    """Digest of the text's bytes, as `sha256sum` prints it."""

    @property
    def is_given(self) -> bool:
        """Whether there is a lock at all."""
        return bool(self.text or self.url)


def read_candidate(candidate: Candidate, download: Callable[[str, int], bytes]) -> LockFiles:
    """Return the lock with this digest; `download(url, max_bytes)` reads an `https://` address.

    `ConfigurationError` where text, address and digest do not fit together.
    """
    if bool(candidate.text) == bool(candidate.url):
        raise ConfigurationError("give either its text or its url", where=_WHERE, key="candidate")
    if candidate.url and candidate.sha256 is None:
        hint = "add the digest that `sha256sum LOCK` prints"
        raise ConfigurationError("is missing beside a url", where=_WHERE, key="candidate.sha256", hint=hint)
    data = _download(candidate.url, download) if candidate.url else candidate.text.encode()
    if candidate.sha256 not in (None, digest_bytes(data)):
        what = f"the lock has the digest {digest_bytes(data)}"
        raise ConfigurationError(what, where=_WHERE, key="candidate.sha256", hint="send the digest of this very lock")
    try:
        text = data.decode()
        if candidate.name == LOCK_FILES_NAME:
            return LockFiles.model_validate_json(text)
        return LockFiles(name=candidate.name, files={candidate.name: text})
    except UnicodeDecodeError as error:
        raise ConfigurationError("is no UTF-8 text", where=_WHERE, key="candidate") from error
    except ValidationError as error:
        key, reason = first_problem(error)
        raise ConfigurationError(reason, where=_WHERE, key=f"candidate.{key}") from error


def _download(url: str, download: Callable[[str, int], bytes]) -> bytes:
    if url.startswith("https://"):
        return download(url, MAX_LOCK_BYTES)
    folder, _, key = url.rpartition("/")
    if "://" not in folder or folder.endswith(":/"):
        raise ConfigurationError("is no address of an object", where=_WHERE, key="candidate.url")
    try:
        return read_bytes(open_store(folder), key, max_bytes=MAX_LOCK_BYTES)
    except InvalidInputError as error:
        raise ConfigurationError(error.what, where=_WHERE, key="candidate.url", hint=error.hint) from error
