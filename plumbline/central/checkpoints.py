"""Checkpoints in a platform's outbox, from which an attempt on a new machine resumes.

Two slots alternate for the tensors, and a pointer with the trainer's own state names the complete slot. Nothing is
deleted, as some stores cannot delete: a completed attempt empties both slots.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from plumbline.digest import canonical_json, digest_bytes
from plumbline.errors import PlumblineError
from plumbline.schema.base import Model, Sha256, read_model
from plumbline.stores.protocol import ObjectMissingError, Store
from plumbline.stores.writing import read_object

_STATE, _TENSORS = "state.json", "tensors.safetensors"
_MAX_BYTES = 4 << 30
_MAX_STATE_BYTES = 64 << 20
_POLL_SECONDS = 5.0
_LEAST_SECONDS = 30.0
"""Minimum seconds between uploads: a checkpoint may be large, and training faster than the link."""


class _Pointer(Model):
    schema_version: Literal[1] = 1
    slot: Literal["a", "b"]
    size: int = Field(ge=0, le=_MAX_BYTES)
    tensors_sha256: Sha256
    state: str
    """The trainer's `state.json`."""


class CheckpointExchange:
    """Synchronisation of a training's checkpoint between its folder and its outbox."""

    def __init__(self, store: Store, job: str, folder: Path) -> None:
        self._store, self._prefix, self._folder = store, f"checkpoints/{job}/", folder
        self._published = ""

    def fetch(self) -> bool:
        """Download the last complete checkpoint; return whether there was one."""
        pointer = self._read()[0]
        if pointer is None or not pointer.size:
            return False
        data = read_object(self._store, self._prefix + pointer.slot, max_bytes=_MAX_BYTES)[0]
        if len(data) != pointer.size or digest_bytes(data) != pointer.tensors_sha256:
            return False
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / _TENSORS).write_bytes(data)
        (self._folder / _STATE).write_text(pointer.state, encoding="utf-8")
        self._published = pointer.tensors_sha256
        return True

    def publish(self) -> bool:
        """Upload the checkpoint if complete and new; return whether it was uploaded."""
        try:
            state = (self._folder / _STATE).read_text(encoding="utf-8")
            if (self._folder / _TENSORS).stat().st_size > _MAX_BYTES or len(state) > _MAX_STATE_BYTES // 2:
                return False
            data = (self._folder / _TENSORS).read_bytes()
        except (OSError, UnicodeDecodeError):
            return False
        sha256 = digest_bytes(data)
        # The trainer may have renamed the folder in between: then state and tensors do not match.
        if sha256 == self._published or sha256 != _promised(state):
            return False
        pointer, etag = self._read()
        slot: Literal["a", "b"] = "b" if pointer is not None and pointer.slot == "a" else "a"
        self._replace(self._prefix + slot, data)
        made = _Pointer(slot=slot, size=len(data), tensors_sha256=sha256, state=state)
        self._store.swap(self._prefix + _STATE, canonical_json(made.to_json()), if_match=etag)
        self._published = sha256
        return True

    def clear(self) -> None:
        """Empty the slots in the outbox, once the training has its record."""
        pointer, etag = self._read()
        if pointer is None or not pointer.size:
            return
        emptied = pointer.replace(size=0, tensors_sha256=digest_bytes(b""), state="")
        self._store.swap(self._prefix + _STATE, canonical_json(emptied.to_json()), if_match=etag)
        for slot in ("a", "b"):
            with contextlib.suppress(ObjectMissingError):
                if self._store.stat(self._prefix + slot).size:
                    self._replace(self._prefix + slot, b"")

    def _read(self) -> tuple[_Pointer | None, str | None]:
        key = self._prefix + _STATE
        try:
            data, info = read_object(self._store, key, max_bytes=_MAX_STATE_BYTES)
        except ObjectMissingError:
            return None, None
        return read_model(_Pointer, data, where=f"{self._store.url}/{key}"), info.etag

    def _replace(self, key: str, data: bytes) -> None:
        try:
            etag: str | None = self._store.stat(key).etag
        except ObjectMissingError:
            etag = None
        self._store.swap(key, data, if_match=etag)


def _promised(state: str) -> str | None:
    """Return the tensors' digest in the trainer's `state`; `None` if malformed."""
    try:
        content = json.loads(state)
    except (ValueError, RecursionError):
        return None
    return content.get("tensors_sha256") if isinstance(content, dict) else None


@contextlib.contextmanager
def shared_checkpoint(
    store: Store,
    job: str,
    folder: Path,
    *,
    on_problem: Callable[[str], None] = lambda _: None,
    poll_seconds: float = _POLL_SECONDS,
    least_seconds: float = _LEAST_SECONDS,
) -> Iterator[CheckpointExchange]:
    """Fetch the last checkpoint of `job` into `folder`, and upload new ones during the block.

    A failing outbox does not stop the training: `on_problem` receives the reason.
    """
    exchange, is_over = CheckpointExchange(store, job, folder), threading.Event()

    def attempt(operation: Callable[[], object]) -> None:
        try:
            operation()
        except (PlumblineError, OSError) as error:
            on_problem(f"checkpoint: {error}")

    def upload() -> None:
        last = time.monotonic() - least_seconds
        while not is_over.wait(poll_seconds):
            if time.monotonic() - last >= least_seconds:
                attempt(exchange.publish)
                last = time.monotonic()

    attempt(exchange.fetch)
    thread = threading.Thread(target=upload, name="checkpoint", daemon=True)
    thread.start()
    try:
        yield exchange
    finally:
        is_over.set()
        thread.join()
        # Upload a checkpoint saved because the machine stops; a completed training has none.
        attempt(exchange.publish)
