"""States of all random generators, as evidence and for restoring."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.digest import digest_bytes
from plumbline.errors import InvalidInputError

_WORD = "<I"


def _words(values: Any) -> bytes:
    return np.asarray(values, dtype="<u4").tobytes()


def read_states() -> dict[str, bytes]:
    """Return each generator's state in a defined byte order."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - libraries draw from the global generator
    states = {
        "python": _words((version, *internal)) + struct.pack("<?d", gauss is not None, gauss or 0.0),
        "numpy": str(name).encode() + _words(keys) + struct.pack("<IId", position, has_gauss, cached),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_available():
        states["cuda:0"] = torch.cuda.get_rng_state().numpy().tobytes()
    return states


def digest_states(states: dict[str, bytes]) -> dict[str, str]:
    """Return the digest of each state."""
    return {name: digest_bytes(state) for name, state in states.items()}


def pack_states(states: dict[str, bytes]) -> NDArray[np.uint8]:
    """Return all states packed into a single array."""
    packed = b"".join(
        struct.pack(_WORD, len(name)) + struct.pack(_WORD, len(state)) + name.encode() + state
        for name, state in sorted(states.items())
    )
    return np.frombuffer(packed, dtype=np.uint8)


def _unpack(packed: NDArray[np.uint8]) -> dict[str, bytes]:
    data, at, states = packed.tobytes(), 0, {}
    while at < len(data):
        if at + 8 > len(data):
            raise InvalidInputError("is truncated", where="rng state")
        name_length, state_length = struct.unpack_from("<II", data, at)
        at += 8
        end = at + name_length + state_length
        if end > len(data):
            raise InvalidInputError("is truncated", where="rng state")
        states[data[at : at + name_length].decode(errors="replace")] = data[at + name_length : end]
        at = end
    return states


def _restore_python(state: bytes) -> None:
    numbers = np.frombuffer(state[:-9], dtype="<u4").tolist()
    has_gauss, gauss = struct.unpack("<?d", state[-9:])
    random.setstate((numbers[0], tuple(numbers[1:]), gauss if has_gauss else None))


def _restore_numpy(state: bytes) -> None:
    position, has_gauss, cached = struct.unpack("<IId", state[-16:])
    keys = np.frombuffer(state[7:-16], dtype="<u4")
    np.random.set_state((state[:7].decode(), keys, position, has_gauss, cached))  # noqa: NPY002 - as above


def restore_states(packed: NDArray[np.uint8]) -> None:
    """Restore every state whose generator exists on this machine."""
    states = _unpack(packed)
    try:
        if "python" in states:
            _restore_python(states["python"])
        if "numpy" in states:
            _restore_numpy(states["numpy"])
        if "torch" in states:
            torch.set_rng_state(torch.from_numpy(np.frombuffer(states["torch"], dtype=np.uint8).copy()))
        if "cuda:0" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(np.frombuffer(states["cuda:0"], dtype=np.uint8).copy()))
    except (ValueError, TypeError, struct.error, RuntimeError, IndexError) as error:
        raise InvalidInputError(f"cannot be restored: {error}", where="rng state") from error
