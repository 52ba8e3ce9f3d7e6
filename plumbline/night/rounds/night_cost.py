"""Cost of a night by platform, from measured usage and prices. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from urllib.parse import urlsplit

from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.fingerprint import StorePrice, machine_of, machine_table
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict

_GIB = 1 << 30
_HOUR = 3600.0
_FREE = StorePrice(month=0.0, egress=0.0)


@dataclass(frozen=True, slots=True)
class PlatformCost:
    """Expected cost of a platform's night in USD; `None` without known price."""

    platform: str
    machine: str
    """Type of the table's machine; "" for the suite's own price, or without one."""
    price_per_hour: float | None
    machine_hours: float
    gpu_hours: float
    gib: float
    """Size of the night's records."""
    num_nights: int
    """Number of nights that were measured; 0: the hours are the bound that `run_seconds` sets."""
    storage: float
    """A month of the records in the outbox and in the central store."""
    egress: float
    """Their transfer to the controller, if the central store is in a different cloud."""

    @property
    def machines(self) -> float | None:
        """Return the machines' cost."""
        return None if self.price_per_hour is None else self.machine_hours * self.price_per_hour

    @property
    def night(self) -> float | None:
        """Return the night's total cost."""
        return None if self.machines is None else self.machines + self.storage + self.egress


def with_usage(verdict: RoundVerdict, gathered: GatheredRecords, on: Mapping[str, float]) -> RoundVerdict:
    """Return the verdict with each platform's machine time and record size.

    `on` has the seconds for which the machines of a platform with `machines` were on.
    """
    seconds: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for assignment, loaded in gathered.records.items():
        name, file = assignment.platform, loaded.folder / RECORD_NAME
        size = sum(part.size for part in loaded.record.parts) + (file.stat().st_size if file.is_file() else 0)
        seconds[name], sizes[name] = seconds.get(name, 0.0) + loaded.record.seconds, sizes.get(name, 0) + size
    platforms = verdict.platforms | {
        name: verdict.platforms[name].replace(machine_seconds=max(seconds[name], 0.0), record_bytes=sizes[name])
        for name in verdict.platforms.keys() & seconds.keys()
    }
    for name, total in on.items():
        platforms[name] = platforms[name].replace(waited_seconds=max(total - seconds.get(name, 0.0), 0.0))
    return verdict.replace(platforms=platforms)


def night_costs(suite: Suite, nights: Sequence[RoundVerdict]) -> tuple[PlatformCost, ...]:
    """Return each platform's median cost per night, or its upper bound."""
    return tuple(_platform_cost(suite, name, nights) for name in suite.platforms)


def _platform_cost(suite: Suite, name: str, nights: Sequence[RoundVerdict]) -> PlatformCost:
    platform, results = suite.platforms[name], [night.platforms[name] for night in nights if name in night.platforms]
    seconds = [result.machine_seconds for result in results if result.machine_seconds is not None]
    sizes = [result.record_bytes for result in results if result.record_bytes is not None]
    hours = (median(seconds) if seconds else platform.run_seconds * len(suite.workloads_of(name))) / _HOUR
    hours *= platform.nodes
    gib = (median(sizes) if sizes else 0) / _GIB
    outbox, store = urlsplit(platform.outbox).scheme, urlsplit(suite.store).scheme
    machine = machine_of(outbox, platform.accelerator) if platform.price_per_hour is None else None
    prices = machine_table().stores
    there, here = prices.get(outbox, _FREE), prices.get(store, _FREE)
    return PlatformCost(
        platform=name,
        machine=machine.type if machine else "",
        price_per_hour=machine.price_per_hour if machine else platform.price_per_hour,
        machine_hours=hours,
        gpu_hours=hours * platform.gpus if platform.accelerator != "cpu" else 0.0,
        gib=gib,
        num_nights=len(seconds),
        storage=gib * (there.month + here.month),
        egress=gib * there.egress if outbox != store else 0.0,
    )


def total(costs: Sequence[PlatformCost]) -> float | None:
    """Return all platforms' total cost; `None` if a price is unknown."""
    nights = [cost.night for cost in costs]
    return None if any(night is None for night in nights) else sum(night for night in nights if night is not None)


def check_cost(suite: Suite, costs: Sequence[PlatformCost], where: str) -> None:
    """Raise if the night's cost exceeds the suite's limit or is unknown."""
    limit = suite.dispatch.max_cost
    if limit is None:
        return
    expected = total(costs)
    if expected is None:
        names = [cost.platform for cost in costs if cost.night is None]
        hint = "set it, or an accelerator of plumbline/schema/machines.toml"
        key = f"platforms.{names[0]}.price_per_hour"
        raise ConfigurationError("is not known, and dispatch.max_cost is set", where=where, key=key, hint=hint)
    if expected > limit:
        shares = ", ".join(f"{cost.platform} {cost.night or 0.0:.2f}" for cost in costs)
        text = f"a night costs {expected:.2f} USD ({shares}), more than {limit:.2f}"
        hint = "raise it, or see `plumbline store cost SUITE`"
        raise ConfigurationError(text, where=where, key="dispatch.max_cost", hint=hint)
