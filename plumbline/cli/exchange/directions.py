"""Directions of other tools' metrics (lower or higher is worse), by name."""

from __future__ import annotations

import re

from plumbline.judge.history.metrics import Worse

_COSTS = frozenset({
    "s", "sec", "secs", "second", "seconds", "ms", "msec", "msecs", "us", "ns", "millis", "milliseconds",
    "microseconds", "nanoseconds", "minutes", "hours", "latency", "time", "walltime", "runtime", "duration",
    "elapsed", "delay", "wait", "stall", "loss", "nll", "perplexity", "ppl", "error", "errors", "mse", "rmse",
    "mae", "wer", "cer", "failures", "retries", "cost", "overhead",
})  # fmt: skip
_SIZES = frozenset({"memory", "mem", "peakmem", "rss", "vram", "bytes", "kb", "mb", "mib", "gb", "gib"})
_RATES = frozenset({
    "bandwidth", "bps", "mbps", "gbps", "fps", "qps", "tps", "mfu", "throughput", "speed", "accuracy", "acc", "f1",
    "auc", "bleu", "rouge", "precision", "recall",
})  # fmt: skip
_TIMES = frozenset({"s", "sec", "second", "min", "minute", "hour"})
_RATIO = re.compile(r"/(?=(?:s|sec|second|min|minute|hour|step|iter|it|sample|token|batch|epoch)s?\)?$)")
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def worse_by_name(name: str) -> Worse | None:
    """Return the worse direction that a metric's name implies, or `None`.

    Times, losses, errors and sizes are costs: a higher value is worse. Of a ratio the numerator decides, as samples
    per second are not a time. A size per time is a rate. A slash before anything but a unit separates folders
    (`train/loss`).
    """
    own_name = _RATIO.sub(" per ", name).rsplit("/", maxsplit=1)[-1]
    words = [word.lower() for word in _WORDS.findall(own_name)]
    place = words.index("per") if "per" in words else len(words)
    numerator = set(words[:place])
    costs = _COSTS if _TIMES.intersection(words[place + 1 : place + 2]) else _COSTS | _SIZES
    is_cost, is_rate = bool(numerator & costs), bool(numerator & _RATES)
    if is_cost != is_rate:
        return "higher" if is_cost else "lower"
    return "lower" if "per" in words and not is_cost else None
