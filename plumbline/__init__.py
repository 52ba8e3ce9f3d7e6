"""Proof that training is the same on every cloud, with causes of drift.

Public names, each loaded when it is first used; all others are internal:

>>> import plumbline
>>> sorted(plumbline.__all__)
['capture', 'compare', 'hugging_face_callback', 'judge_alone', 'lightning_callback', 'read_record']

`capture` records a team's own training loop (torch), `read_record` reads a record's folder, `compare` judges one beside
another, and `judge_alone` by itself. A judgement has a `verdict`, `findings` and `causes`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["capture", "compare", "hugging_face_callback", "judge_alone", "lightning_callback", "read_record"]

_PLACES = {
    "capture": ("plumbline.train.capture", "capture"),
    "hugging_face_callback": ("plumbline.train.capture", "hugging_face_callback"),
    "lightning_callback": ("plumbline.train.capture", "lightning_callback"),
    "compare": ("plumbline.judge", "compare"),
    "judge_alone": ("plumbline.judge.alone", "judge_alone"),
    "read_record": ("plumbline.records", "load_record"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'plumbline' has no attribute {name!r}")
    module, own = _PLACES[name]
    return getattr(import_module(module), own)
