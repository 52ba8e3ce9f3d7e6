"""Two environments of an A/B on one worker.

One is the worker's own, the other a copy with the baseline's packages. Both are built the same way, so that the
location of files favours neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plumbline.errors import UnavailableError
from plumbline.schema.experiment import AbOrder
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.environments import Environments, is_on_python_path
from plumbline.upgrade.installer import choose_installer
from plumbline.upgrade.kept_locks import hashed_pins
from plumbline.upgrade.locks.model import Pin
from plumbline.upgrade.store import PackageStore


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Python interpreter of each environment."""

    tonight: Path
    baseline: Path


def build_environments(order: AbOrder, root: Path) -> Interpreters:
    """Build both environments below `root`, from the hashes in the locks that this worker has had.

    Raise `PlumblineError` if the baseline's environment cannot be built.
    """
    hashed = hashed_pins(root)
    store = PackageStore(root / "store", choose_installer())
    environments = Environments(root / "environments", store)
    changes = [
        PackageChange(package=pin.name, current=None, candidate=pin if version else None)
        for pin, version in ((_pin(name, version, hashed), version) for name, version in order.packages)
    ]
    for change in changes:
        installed = environments.current.get(change.package)
        if installed is not None and is_on_python_path(installed):
            text = f"{change.package} is on PYTHONPATH, which both environments import first"
            raise UnavailableError(text, where=str(installed.root))
    failures = store.add(change.candidate for change in changes if change.candidate is not None)
    if failures:
        raise UnavailableError(failures[0].message, where=failures[0].package)
    environments.prune()
    return Interpreters(environments.build(()).python, environments.build(changes).python)


def _pin(name: str, version: str, hashed: Mapping[tuple[str, str], Pin]) -> Pin:
    pin = Pin(name=name, version=version)
    return hashed.get((pin.name, pin.identity[0]), pin)
