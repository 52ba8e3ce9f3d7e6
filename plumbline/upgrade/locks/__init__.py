"""Lock files of every format, as pins for this interpreter."""

from plumbline.upgrade.locks.model import Lock, LockFiles, Pin
from plumbline.upgrade.locks.read import decode_lock, load_lock, parse_lock, read_lock

__all__ = ["Lock", "LockFiles", "Pin", "decode_lock", "load_lock", "parse_lock", "read_lock"]
