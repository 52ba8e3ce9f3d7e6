"""Judgement of one upgrade on this machine, from two locks.

The command line and a worker call it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from plumbline.data.datasets.spec import workload_named
from plumbline.environments.changes import PackageChange, changes_between
from plumbline.environments.installed import Base, this_base
from plumbline.environments.installer import choose_installer
from plumbline.environments.locks import Lock
from plumbline.environments.package_store import PackageStore
from plumbline.environments.virtual_environments import Environments, check_current
from plumbline.schema.command import CommandWorkload
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import Suite, Workload
from plumbline.upgrade.answer import UpgradeAnswer
from plumbline.upgrade.campaign import Parts, UpgradeOptions
from plumbline.upgrade.gate import UpgradeGate
from plumbline.upgrade.machine import LocalTrials


@dataclass(frozen=True, slots=True)
class Locks:
    """Old and new lock, parsed for this interpreter.

    Without a current lock, the installed packages count as current.
    """

    candidate: Lock
    current: Lock | None = None


@dataclass(frozen=True, slots=True)
class UpgradeSettings:
    """Settings of an upgrade judgement on this machine."""

    work: Path
    pip_arguments: tuple[str, ...] = ()
    options: UpgradeOptions = field(default_factory=UpgradeOptions)
    base: Base = field(default_factory=this_base)
    """Interpreter of the current environment."""


def workload_of(suite: Suite, name: str | None, where: str = "") -> str:
    """Return the workload to train.

    Default: the first with a probe, otherwise the first. Raise `ConfigurationError` for an unknown name.
    """
    if name is not None:
        workload_named(suite, name, where)
        return name
    probed = next((key for key, workload in suite.workloads.items() if parts_of(workload).probe), None)
    return probed or next(iter(suite.workloads))


def parts_of(workload: Workload | CommandWorkload) -> Parts:
    """Return the parts that are compared; a command's record is judged as a probe."""
    if isinstance(workload, CommandWorkload):
        return Parts(probe=True, learn=False, speed=False)
    return Parts(probe=workload.probe is not None, learn=workload.learn is not None, speed=workload.speed is not None)


def local_trials(
    suite: Suite, workload: str, settings: UpgradeSettings, say: Callable[[str], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> LocalTrials:  # fmt: skip
    """Return a runner of trials on this machine."""
    base = settings.base
    installer = choose_installer(settings.pip_arguments, base.python)
    store = PackageStore(settings.work / "store", installer, allows_unhashed=settings.options.allow_unhashed, base=base)
    environments = Environments(settings.work / "environments", store, base=base)
    return LocalTrials(suite, workload, settings.work, environments, store, say=say, should_stop=should_stop)


def changes_of(locks: Locks, trials: LocalTrials) -> tuple[PackageChange, ...]:
    """Return the package changes that the candidate makes here.

    Raise `ConfigurationError` unless the current lock's packages are installed.
    """
    installed = trials.environments.current
    if locks.current is None:
        # Without a lock in force nothing says that a package is to go: what the candidate lacks stays.
        known = {name: package.pin for name, package in installed.items() if name in locks.candidate.pins}
        return tuple(change for change in changes_between(known, locks.candidate.pins) if not _is_installed(change))
    changes = changes_between(locks.current.pins, locks.candidate.pins)
    check_current(locks.current, changes, installed)
    return changes


def _is_installed(change: PackageChange) -> bool:
    """Return whether only a build label such as `+cpu` differs, which most locks do not pin."""
    if change.current is None or change.candidate is None or change.candidate.url:
        return False
    return change.current.identity[0].partition("+")[0] == change.candidate.identity[0]


def judge_upgrade(
    suite: Suite, workload: str, locks: Locks, settings: UpgradeSettings, say: Callable[[str], None] = lambda _: None,
    *, should_stop: Callable[[], bool] = lambda: False,
) -> UpgradeAnswer:  # fmt: skip
    """Judge the candidate lock by trials on this machine."""
    options = settings.options
    if options.releases and not options.allow_unhashed:
        hint = "leave it out, or add --allow-unhashed"
        raise ConfigurationError("no lock has the hashes of releases in between", key="--releases", hint=hint)
    say("comparing the locks with the installed packages")
    here = local_trials(suite, workload, settings, say, should_stop)
    changes = changes_of(locks, here)
    others = _elsewhere(locks)
    unused = tuple(dict.fromkeys(note for lock in (locks.candidate, locks.current) if lock for note in lock.notes))
    for note in unused:
        say(note)
    about = {
        "current": locks.current.where if locks.current else "the installed packages",
        "candidate": locks.candidate.where, "candidate_sha256": locks.candidate.sha256,
        "not_from_index": others,
    }  # fmt: skip
    if changes:
        chosen = suite.workloads[workload]
        parts = parts_of(chosen)
        say(f"changed packages: {len(changes)}; at most {options.trials} trials, {options.seconds:.0f} s")
        answer = UpgradeGate(here, suite.gates, parts, options, say).judge(changes)
        here.environments.prune()
    else:
        answer = UpgradeAnswer(verdict="pass", notes=() if others else ("both locks pin the same packages",))
    if others:
        note = f"packages differ that no Python index serves, and were not tried: {', '.join(others)}"
        verdict = "inconclusive" if answer.verdict == "pass" else answer.verdict
        answer = answer.replace(verdict=verdict, notes=(*answer.notes, note))
    return answer.replace(**about, notes=(*answer.notes, *unused))


def _elsewhere(locks: Locks) -> tuple[str, ...]:
    """Return changed packages from conda or local folders, which are not tested."""
    if locks.current is None:
        return ()
    return tuple(sorted({name for name, _ in locks.current.elsewhere.items() ^ locks.candidate.elsewhere.items()}))
