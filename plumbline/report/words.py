"""Plain words for verdicts, causes, places and numbers: the same on every face."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from plumbline.schema.verdict import Cause, CauseCode, Divergence, Outcome, PlatformResult

__all__ = [
    "CAUSES", "MENDS", "NONE", "SYMBOLS", "WORDS", "by_rounding", "cause_line", "clean", "listed", "number",
    "percent", "place", "seconds", "size", "top_cause",
]  # fmt: skip

NONE = "—"
"""Nothing to show; in words where it matters."""

WORDS: dict[Outcome, str] = {"pass": "pass", "drift": "drift", "inconclusive": "inconclusive", "invalid": "invalid"}
SYMBOLS: dict[Outcome, str] = {"pass": "✓", "drift": "✕", "inconclusive": "?", "invalid": "!"}

CAUSES: dict[str, str] = {
    "data.content": "the training data itself differs",
    "data.labels": "the labels of the training data differ",
    "data.order": "the same rows come in another order",
    "tokenization": "the same texts become other token ids",
    "model.architecture": "another model was built",
    "weights.init": "training starts from other weights",
    "rng": "random numbers are drawn that should not be, or other ones",
    "precision": "arithmetic keeps fewer or more bits than the recipe says",
    "operator": "a layer computes something else",
    "kernel": "another kernel or device rounds differently",
    "loss": "the loss is computed in another way",
    "gradient": "gradients are scaled, accumulated or clipped in another way",
    "optimizer": "the optimizer updates the weights in another way",
    "schedule": "the learning rate follows another schedule",
    "evaluation": "the evaluation measures something else",
    "nondeterminism": "the platform does not agree with itself",
    "device": "the device computes wrongly",
    "loader": "training waits for its data",
    "transfer": "copies to the device take longer",
    "throttling": "the device is throttled",
    "slow-device": "the device itself is slower",
    "contention": "something else uses the machine",
    "software": "the software got slower",
    "environment": "the environment differs, and nothing ties that to the drift",
    "unattributed": "the evidence points to no known cause",
}
"""What each cause code says, as the end of the sentence "… because"."""

MENDS: dict[str, str] = {
    "data.content": "Publish the dataset again (`plumbline data push`), then check it (`plumbline data verify`).",
    "data.labels": "Publish the dataset again (`plumbline data push`), then check it (`plumbline data verify`).",
    "data.order": "Look for another seed, another number of shards or a loader that shuffles by itself.",
    "tokenization": "Publish the dataset again, and compare the versions of `tokenizers`.",
    "model.architecture": "Compare the versions of `transformers`, and patches of the model's code.",
    "weights.init": "Publish the initial weights again; nothing may reseed the model on the platform.",
    "rng": "Look for dropout left on, or a library that seeds or draws by itself.",
    "precision": "Look at TF32, autocast and matmul precision settings on the platform.",
    "operator": "Look at the module named: its settings, its kernel, and what replaced it.",
    "kernel": "Look for a library replaced in place: machines with equal fingerprints owe equal bits.",
    "loss": "Look at the loss function: its reduction, label smoothing and number format.",
    "gradient": "Look at gradient accumulation, loss scaling and clipping.",
    "optimizer": "Look at the optimizer's settings by parameter group, and at its implementation.",
    "schedule": "Look at warm-up, the number of steps and what calls the scheduler.",
    "evaluation": "Look at evaluation mode, the rows evaluated and how accuracy is counted.",
    "nondeterminism": "Run it twice on that machine; look for non-deterministic kernels, then for failing hardware.",
    "device": "Take the machine out of service; run its vendor's diagnostics.",
    "loader": "Look at the data store's rate, the window of shards and the host's disk.",
    "transfer": "Look at pinned memory and at the PCIe link in the fingerprint.",
    "throttling": "Look at temperature, power limit and clocks of the device.",
    "slow-device": "Ask for another machine; compare the microbenchmarks below.",
    "contention": "Find the other process or neighbour; give training the machine alone.",
    "software": "Compare the packages below; `plumbline upgrade` finds the one that did it.",
    "environment": "Undo the differences below one by one, or ask for a confirming rerun.",
    "unattributed": "Compare the evidence below; keep both records for a closer look.",
}
"""What to do about each cause."""

assert set(CAUSES) == set(MENDS) == set(get_args(CauseCode))  # noqa: S101 - a code without words is our own mistake

_SURE_ORDER = {"confirmed": 0, "likely": 1, "unattributed": 2}
_MAX_CHARS = 400


def clean(text: object, limit: int = _MAX_CHARS) -> str:
    """One printable line of what a worker or a store sent: no control characters, no reversed writing, bounded."""
    line = "".join(char if char.isprintable() else " " for char in str(text)[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def number(value: float | str | None) -> str:
    """A number in at most four digits; a missing one says so."""
    if value is None or isinstance(value, str):
        return "missing" if value is None else clean(value, 80)
    if not math.isfinite(value):
        return "not finite"
    magnitude = abs(value)
    if value != 0 and (magnitude >= 1e6 or magnitude < 1e-3):
        return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if magnitude >= 1000 else f"{value:.4g}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one in percent."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def seconds(value: float | None) -> str:
    """A duration as a person says it."""
    if value is None or not math.isfinite(value) or value < 0:
        return NONE
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(num_bytes: float | None) -> str:
    """A number of bytes in binary units."""
    if num_bytes is None:
        return NONE
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def place(divergence: Divergence | None) -> str:
    """Where two runs first stopped being the same, in one line."""
    if divergence is None:
        return NONE
    parts: list[str] = [divergence.stage]
    if divergence.at:
        parts.append(clean(divergence.at, 120))
    if divergence.step is not None:
        parts.append(f"step {divergence.step}")
    if divergence.row is not None:
        parts.append(f"row {divergence.row}")
    return ", ".join(parts)


def top_cause(result: PlatformResult) -> Cause | None:
    """The cause that is surest, the first of these."""
    return min(result.causes, key=lambda cause: _SURE_ORDER[cause.sure], default=None)


def by_rounding(result: PlatformResult) -> bool:
    """Whether the judge noted that the platform differs, and by rounding alone."""
    return any(note.code == "rounding" for note in result.notes)


def cause_line(result: PlatformResult) -> str:
    """Code and sureness of the top cause, or why there is none."""
    cause = top_cause(result)
    if cause is not None:
        more = f" +{len(result.causes) - 1}" if len(result.causes) > 1 else ""
        return f"{cause.code} ({cause.sure}){more}"
    if result.unavailable:
        return clean(result.unavailable, 120)
    return "kernel: rounding only" if by_rounding(result) else NONE
