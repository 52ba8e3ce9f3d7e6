"""Upgrade to a lock: job and order of each platform."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.dispatch import Job, job_key, record_id
from plumbline.upgrade.locks import LockFiles
from plumbline.upgrade.orders import UpgradeOrder, nonce_of, suite_of
from plumbline.upgrade.request import UpgradeRequest

_SPARE_SECONDS = 600.0
"""Seconds after the budget, for the last trial and the report."""


@dataclass(frozen=True, slots=True)
class LockUpgrade:
    """One candidate lock, with the platforms that judge it."""

    request: UpgradeRequest
    lock: LockFiles
    secret: str

    def job(self, platform: str) -> Job:
        """Return the dispatch job of a platform."""
        chosen, request = self.request.suite.platforms[platform], self.request
        return Job(
            key=job_key(request.suite.name, request.upgrade_id, platform, "upgrade"), platform=platform,
            retries=chosen.retries, start_seconds=chosen.start_seconds,
            run_seconds=request.budget.seconds + _SPARE_SECONDS,
        )  # fmt: skip

    def order(self, platform: str, attempt: int) -> UpgradeOrder:
        """Return the worker's order for this attempt."""
        name, request = record_id(self.job(platform).key, attempt), self.request
        workload = request.chosen_workload
        return UpgradeOrder(
            platform=platform, outbox=request.suite.platforms[platform].outbox, record_id=name,
            upgrade_id=request.upgrade_id, attempt=attempt, nonce=nonce_of(self.secret, name),
            suite=suite_of(request.suite, platform, workload), workload=workload, lock_sha256=self.lock.digest,
            trials=request.budget.trials, seconds=request.budget.seconds, releases=request.releases,
            allow_unhashed=request.allow_unhashed,
        )  # fmt: skip
