"""A lock as data: the files that were read, and the pins that hold for one interpreter."""

from __future__ import annotations

from packaging.utils import canonicalize_name, canonicalize_version
from pydantic import Field, field_validator

from plumbline.digest import digest_json
from plumbline.schema.base import Model

__all__ = ["Lock", "LockFiles", "Pin"]

_MAX_FILES = 64
_MAX_PINS = 20_000


class Pin(Model):
    """One package of a lock: a version from an index, or the URL of an archive or repository."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=200)
    version: str = Field(default="", max_length=200)
    """Empty where only the URL is known."""
    url: str = Field(default="", max_length=2000)
    hashes: tuple[str, ...] = Field(default=(), max_length=10_000)
    """`ALGORITHM:HEX`; the installer accepts archives with one of these only."""

    @field_validator("name", mode="before")
    @classmethod
    def _canonical(cls, value: object) -> object:
        return canonicalize_name(value) if isinstance(value, str) else value

    @property
    def identity(self) -> tuple[str, str]:
        """What makes two pins the same: the version as PEP 440 compares it, and the URL."""
        return canonicalize_version(self.version), self.url

    @property
    def shown(self) -> str:
        """The version, or the URL without credentials where the version is not known."""
        return self.version or self.url.partition("://")[2].rpartition("@")[2] or self.url

    @property
    def requirement(self) -> str:
        """The line of a requirements file that installs this pin and nothing else."""
        target = f"{self.name} @ {self.url}" if self.url else f"{self.name}=={self.version}"
        return " ".join([target, *(f"--hash={value}" for value in self.hashes)])


class LockFiles(Model):
    """A lock as text: its own file and those that it includes. This is what travels to a worker."""

    name: str = Field(max_length=500)
    """The path of the lock itself, a key of `files`; its file name decides the format."""
    files: dict[str, str] = Field(min_length=1, max_length=_MAX_FILES)

    @property
    def digest(self) -> str:
        """SHA-256 over names and texts."""
        return digest_json(self.to_json())


class Lock(Model):
    """The pins of a lock that hold for one interpreter and operating system."""

    where: str
    format: str
    sha256: str
    """Digest of the files."""
    pins: dict[str, Pin] = Field(max_length=_MAX_PINS)
    elsewhere: dict[str, str] = {}
    """Packages that no Python index serves, such as conda's, with their versions: they cannot be built here."""
