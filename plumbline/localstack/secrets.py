"""Secrets of one local stack: the login of its Prefect server, and the keys of its object stores.

Each user of a machine reaches its loopback ports, so that each server asks for one of them.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field
from pathlib import Path

LOGIN_NAME = "login"
"""File in the state folder with the login, as PREFECT_API_AUTH_STRING expects it."""
S3_KEY = "PLUMBLINE_S3_KEY"


@dataclass(frozen=True, slots=True)
class StackSecrets:
    """Random secrets; the login stays the same for one state folder, so that a browser can remember it."""

    login: str
    s3: str = field(default_factory=lambda: secrets.token_hex(10).upper())
    """Access key, which S3's signatures name."""
    blob: str = field(default_factory=lambda: base64.b64encode(secrets.token_bytes(64)).decode())


def read_login(state: Path) -> str:
    """Return the login of the Prefect server in this state folder; write it, for this user alone, at the first use."""
    path = state / LOGIN_NAME
    if not path.is_file():
        path.touch(mode=0o600)
        path.write_text(f"plumbline:{secrets.token_urlsafe(24)}\n", encoding="ascii")
    path.chmod(0o600)
    return path.read_text(encoding="ascii").strip()
