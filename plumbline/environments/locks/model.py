"""Data model of a lock: its files and its pins."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, NamedTuple
from urllib.parse import parse_qs

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_sdist_filename,
    parse_wheel_filename,
)
from pydantic import Field, field_validator

from plumbline.schema.base import Model
from plumbline.schema.digest import digest_json
from plumbline.schema.suite_file import without_credentials

_MAX_FILES = 64
_MAX_PINS = 20_000
OWN_NAME = "plumbline-training"
"""Distribution that trains: of both environments, it is the one that runs this command."""
REPOSITORY = re.compile(r"^(git|hg|bzr|svn)\+")
_STRONG = ("sha256:", "sha384:", "sha512:")
Hash = Annotated[str, Field(pattern=r"^[a-z0-9_]+:[0-9a-f]+$", max_length=300)]


class Pin(Model):
    """Pinned package: a version from an index, or a URL.

    The URL is that of an archive or a repository.
    """

    # Each is part of an installer's line, and the version of a folder's name: no space, newline, path or option fits.
    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=200)
    version: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9.!+_-]*)?$", max_length=200)
    """Empty where only the URL is known."""
    url: str = Field(default="", pattern=r"^[!-~]*$", max_length=2000)
    hashes: tuple[Hash, ...] = Field(default=(), max_length=10_000)
    """`ALGORITHM:HEX`; the installer accepts archives with one of these only."""

    @field_validator("name", mode="before")
    @classmethod
    def _canonical(cls, value: object) -> object:
        return canonicalize_name(value) if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _is_inert(cls, url: str) -> str:
        if "${" in url:
            raise ValueError("contains a variable, which the installer would replace by this machine's value")
        return without_credentials(url)

    @property
    def is_hashed(self) -> bool:
        """Return whether hashes fix exactly what is installed."""
        return bool(self.hashes) and all(value.startswith(_STRONG) for value in self.hashes)

    @property
    def identity(self) -> tuple[str, str]:
        """Return the pin's identity, for comparison with other pins.

        It is the version in PEP 440's canonical form, and the URL.
        """
        return canonicalize_version(self.version), self.url

    def may_equal(self, other: Pin) -> bool:
        """Return whether one archive may fit both pins."""
        has_common = not self.hashes or not other.hashes or not {*self.hashes}.isdisjoint(other.hashes)
        return self.identity == other.identity and has_common

    @property
    def shown(self) -> str:
        """Return the version; if unknown, the URL without its scheme."""
        return self.version or self.url.partition("://")[2] or self.url

    @property
    def requirement(self) -> str:
        """Return the requirements.txt line that installs exactly this pin."""
        target = f"{self.name} @ {self.url}" if self.url else f"{self.name}=={self.version}"
        return " ".join([target, *(f"--hash={value}" for value in self.hashes)])


def repository_url(address: str, commit: str, folder: str = "", *, kind: str = "git") -> str:
    """Return pip's URL for a repository, or a subfolder, at a commit."""
    return f"{kind}+{address}@{commit}{f'#subdirectory={folder}' if folder else ''}"


def referenced_url(reference: str) -> str:
    """Convert a repository address from uv or pixi to pip's URL."""
    address, _, commit = reference.partition("#")
    address, _, query = address.partition("?")
    return repository_url(address, commit, "".join(parse_qs(query).get("subdirectory", [])))


def archive_of(url: str) -> tuple[str, str]:
    """Return name and version from an archive's file name, or ""."""
    file = url.partition("#")[0].partition("?")[0].rpartition("/")[2].replace("%2B", "+")
    try:
        found = parse_wheel_filename(file)[:2] if file.endswith(".whl") else parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return "", ""
    return found[0], str(found[1])


class LockEntry(NamedTuple):
    """Package of a lock that is installed for this interpreter and choice."""

    name: str
    version: str
    url: str = ""
    """Of a repository, or of an archive that no index serves."""
    path: str = ""
    """Of an archive on the machine that wrote the lock."""
    hashes: Iterable[str] = ()
    is_elsewhere: bool = False
    """No Python index serves it: a folder of the team's own, or a package of conda's."""


class LockFiles(Model):
    """Texts of a lock file and the files that it includes.

    This is sent to a worker.
    """

    name: str = Field(max_length=500)
    """The path of the lock itself, a key of `files`; its file name decides the format."""
    files: dict[str, str] = Field(min_length=1, max_length=_MAX_FILES)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all file names and texts."""
        return digest_json(self.to_json())


class Lock(Model):
    """Pins of a lock for one interpreter and operating system."""

    where: str
    sha256: str
    """Digest of the files."""
    pins: dict[str, Pin] = Field(max_length=_MAX_PINS)
    elsewhere: dict[str, str] = {}
    """Packages that no Python index serves, such as conda's, with their versions: they cannot be built here."""
    notes: tuple[str, ...] = ()
    """What the file says and nothing uses, such as its index options."""
