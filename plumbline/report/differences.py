"""Differences between fingerprints, shown as hints, never verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plumbline.judge.history.metrics import read_metrics
from plumbline.report.sentences import NONE, clean, number, percent, when_of
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import PlatformResult


@dataclass(frozen=True, slots=True)
class FingerprintDifference:
    """One fingerprint key, with its value for each compared record."""

    group: str
    key: str
    values: tuple[str, ...]
    differs: tuple[bool, ...]
    """Whether each value differs from the first."""


@dataclass(frozen=True, slots=True)
class NightChange:
    """What changed on one platform since an earlier night; `anchor` is the table of the environment's differences."""

    platform: str
    since: str
    accuracy: str
    throughput: str
    num_differences: int
    anchor: str


def night_change(platform: str, result: PlatformResult, earlier: RunRecord, num_differences: int) -> NightChange:
    """Compare a platform's numbers with those of an earlier night's record."""
    before = read_metrics(earlier)
    old, new = before["throughput"], result.samples_per_second
    change = f" ({100 * (new / old - 1):+.1f} %)" if old and new is not None else ""
    rates = "" if old is new is None else f" /s{change}"
    return NightChange(
        platform,
        when_of(earlier.round_id or earlier.record_id),
        f"{percent(before['accuracy'], 2)} → {percent(result.accuracy, 2)}",
        f"{NONE if old is None else number(old)} → {NONE if new is None else number(new)}{rates}",
        num_differences,
        f"since-{platform}",
    )


def described(fingerprint: Fingerprint) -> str:
    """Describe a machine in a few words."""
    if fingerprint.gpus:
        count = f"{len(fingerprint.gpus)} of " if len(fingerprint.gpus) > 1 else ""
        device = f"{count}{fingerprint.gpus[0].name}"
    else:
        threads = fingerprint.cpu.num_threads
        device = f"{fingerprint.cpu.model} ({fingerprint.cpu.isa}, {threads} thread{'' if threads == 1 else 's'})"
    torch = fingerprint.packages.get("torch")
    software = f"torch {torch}" if torch else f"Python {fingerprint.python}"
    return clean(f"{device} · {software} · {fingerprint.hostname}", 160)


def _flat(fingerprint: Fingerprint) -> dict[tuple[str, str], str]:
    """Return fingerprint values by (group, key), in display order."""
    cpu = fingerprint.cpu
    gpus = fingerprint.gpus
    entries: dict[tuple[str, str], object] = {
        ("hardware", "gpu"): ", ".join(gpu.name for gpu in gpus) or "none",
        ("hardware", "gpu uuid"): ", ".join(gpu.uuid for gpu in gpus) or "none",
        ("hardware", "gpu multiprocessors"): ", ".join(str(gpu.num_sms) for gpu in gpus) or "none",
        ("hardware", "cpu"): cpu.model,
        ("hardware", "cpu instruction set"): cpu.isa,
        ("hardware", "cpu cores"): cpu.num_cores,
        ("hardware", "threads"): cpu.num_threads,
        ("hardware", "processes"): fingerprint.num_processes,
        ("software", "operating system"): fingerprint.os,
        ("software", "python"): fingerprint.python,
        ("software", "plumbline"): fingerprint.plumbline,
        ("software", "driver"): fingerprint.driver or "none",
        ("software", "cuda"): fingerprint.cuda or "none",
        ("software", "cudnn"): fingerprint.cudnn or "none",
        ("software", "nccl"): fingerprint.nccl or "none",
        ("software", "container image"): fingerprint.container_image or "none",
        ("software", "lock file"): fingerprint.lock_sha256[:12] or "none",
    }
    groups: dict[str, Mapping[str, object]] = {
        "topology": fingerprint.topology,
        "packages": fingerprint.packages,
        "settings": fingerprint.numerics,
        "bits of mantissa": fingerprint.mantissa_bits,
        "environment": fingerprint.environment,
    }
    for group, content in groups.items():
        entries |= {(group, clean(key, 80)): value for key, value in content.items()}
    return {key: clean(value, 120) for key, value in entries.items()}


_ORDER = ("settings", "bits of mantissa", "software", "packages", "hardware", "topology", "environment")
"""Few before many: a table is cut, and the lock of two different environments must not be what is left out."""


def differences(columns: Sequence[Fingerprint]) -> tuple[FingerprintDifference, ...]:
    """Return the keys with different values between the records."""
    flat = [_flat(fingerprint) for fingerprint in columns]
    keys = list(dict.fromkeys(key for column in flat for key in column))
    rows = []
    for group, key in sorted(keys, key=lambda entry: (_ORDER.index(entry[0]), keys.index(entry))):
        values = tuple(column.get((group, key), NONE) for column in flat)
        if len(set(values)) > 1:
            rows.append(FingerprintDifference(group, key, values, tuple(value != values[0] for value in values)))
    return tuple(rows)
