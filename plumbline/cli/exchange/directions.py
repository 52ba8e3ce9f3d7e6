"""Directions of other tools' metrics (lower or higher is worse), by name."""

from __future__ import annotations

import re

from plumbline.judge.history.metrics import Worse

_TIMES = frozenset({
    "s", "sec", "secs", "second", "seconds", "ms", "msec", "msecs", "us", "ns", "millis", "milliseconds",
    "microseconds", "nanoseconds", "min", "minute", "minutes", "h", "hour", "hours", "day", "days",
})  # fmt: skip
_COSTS = frozenset({
    "latency", "time", "walltime", "runtime", "duration", "elapsed", "delay", "wait", "stall", "loss", "nll",
    "perplexity", "ppl", "bpb", "bpc", "error", "errors", "mse", "rmse", "mae", "wer", "cer", "failures", "retries",
    "cost", "overhead",
})  # fmt: skip
_SIZES = frozenset({
    "memory", "mem", "peakmem", "rss", "vram", "bits", "bit", "b", "byte", "bytes", "kb", "mb", "mib", "gb", "gib",
    "alloc", "allocs", "allocations",
})  # fmt: skip
_RATES = frozenset({
    "bandwidth", "bps", "mbps", "gbps", "fps", "qps", "tps", "hz", "mfu", "tflops", "gflops", "throughput", "speed",
    "accuracy", "acc", "f1", "auc", "bleu", "rouge", "precision", "recall",
})  # fmt: skip
_AMBIGUOUS = frozenset({"min", "h", "b"})
"""Units only beside a slash or in parentheses: `min` is a minimum as well."""
_COUNTS = frozenset({
    "step", "iter", "it", "op", "sample", "token", "batch", "epoch", "request", "query", "call", "byte", "char",
})  # fmt: skip
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_UNIT = re.compile(r"\(([^()]*)\)\s*$")


def worse_by_name(name: str) -> Worse | None:
    """Return the worse direction that a metric's name implies, or `None`.

    A unit in parentheses at its end states more than the words before, unless it is a mere size. Times, losses, errors
    and sizes are costs: a higher value is worse. A slash before anything but a unit separates folders (`train/loss`).
    """
    unit = _UNIT.search(name)
    if unit and (way := worse_by_unit(unit[1])):
        return way
    path = name.replace("µ", "u").replace("μ", "u").split("/")
    own_name = path[0]
    for part in path[1:]:
        word = part.strip(" )").casefold()
        is_unit = word in _TIMES or word.removesuffix("s") in _COUNTS
        own_name = f"{own_name} per {part}" if is_unit or " per " in own_name else part
    sizes = _SIZES if own_name not in path else _SIZES - _AMBIGUOUS
    return _worse_of([word.lower() for word in _WORDS.findall(own_name)], _TIMES - _AMBIGUOUS, sizes)


def worse_by_unit(unit: str) -> Worse | None:
    """Return the worse direction that a time, or a ratio with one, states as a metric's unit; else `None`."""
    plain = unit.replace("µ", "u").replace("μ", "u").replace("/", " per ")
    words = [word.lower() for word in _WORDS.findall(plain)]
    return _worse_of(words, _TIMES, _SIZES) if "per" in words or _TIMES.intersection(words) else None


def _worse_of(words: list[str], times: frozenset[str], sizes: frozenset[str]) -> Worse | None:
    """Return the worse direction of words with their first ratio.

    The numerator decides: a time per count is a cost. Anything else per time is a rate, also a size. A ratio without
    a time is no rate: bits per byte are a size.
    """
    place = words.index("per") if "per" in words else len(words)
    numerator, is_per_time = set(words[:place]), bool(_TIMES.intersection(words[place + 1 : place + 2]))
    is_cost = bool(numerator & (times | _COSTS | (frozenset() if is_per_time else sizes)))
    is_rate = bool(numerator & _RATES) or (is_per_time and not is_cost)
    return None if is_cost == is_rate else "higher" if is_cost else "lower"
