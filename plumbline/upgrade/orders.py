"""Messages between controller and workers about one upgrade.

The controller orders; the report comes back through the platform's outbox.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plumbline import __version__
from plumbline.data.stores import ObjectMissingError, Store, ensure_object, read_bytes
from plumbline.environments.locks import LockFiles
from plumbline.night.central.outbox import record_key
from plumbline.night.dispatch import Recorded, RecordKind
from plumbline.schema.base import Label, Model, Name, Sha256, read_model
from plumbline.schema.digest import digest_json
from plumbline.schema.errors import ExitCode, InvalidInputError
from plumbline.schema.suite import Suite
from plumbline.schema.suite_file import StoreUrl
from plumbline.upgrade.answer import UpgradeAnswer
from plumbline.upgrade.campaign import UpgradeOptions

REPORT_NAME = "upgrade.json"
_MAX_BYTES = 64 << 20


class UpgradeOrder(UpgradeOptions):
    """Order to judge one upgrade on one platform.

    It names only that platform's stores, and contains no secret.
    """

    version: Label = __version__
    """Version of the controller's plumbline, as in a training's order."""
    platform: Name
    outbox: StoreUrl
    record_id: Name
    upgrade_id: Name
    attempt: int = Field(default=0, ge=0)
    nonce: str = Field(min_length=32, max_length=128)
    """A value that only this upgrade's controller knows: the report with it answers this order."""
    suite: Suite
    """With this platform alone."""
    workload: Name
    lock_sha256: Sha256
    """Digest of the candidate in the outbox, as `LockFiles` states it."""


class PlatformReport(Model):
    """Report of a worker: an answer or an error."""

    schema_version: Literal[1] = 1
    record_id: Name
    platform: Name
    nonce: str = Field(max_length=128)
    current_sha256: str = Field(default="", max_length=64)
    """Digest of the lock file that the worker's environment was installed from."""
    answer: UpgradeAnswer | None = None
    error: str = Field(default="", max_length=4000)
    exit_code: int = Field(default=0, ge=0, le=4)
    """Of the error."""


def suite_of(suite: Suite, platform: str, workload: str) -> Suite:
    """Return the suite reduced to what one worker needs.

    It has the worker's own platform and one workload, and no recipients of alerts.
    """
    own = suite.platforms[platform]
    data = suite.workloads[workload].data
    return suite.replace(
        store=own.outbox, platforms={platform: own}, reference=platform, alerts=(), local={}, schedule=None,
        candidates=(), workloads={workload: suite.workloads[workload]},
        datasets={name: source for name, source in suite.datasets.items() if name == data},
    )  # fmt: skip


def nonce_of(secret: str, record_id: str) -> str:
    """Return the unique nonce of one attempt."""
    return digest_json([secret, record_id])[:32]


def _lock_key(sha256: str) -> str:
    return f"locks/{sha256}.json"


def publish_lock(outbox: Store, lock: LockFiles) -> None:
    """Upload the candidate lock to an outbox, under its digest. Idempotent."""
    ensure_object(outbox, _lock_key(lock.digest), lock.model_dump_json().encode())


def fetch_lock(outbox: Store, sha256: str) -> LockFiles:
    """Download the candidate lock with this digest."""
    key = _lock_key(sha256)
    lock = read_model(LockFiles, read_bytes(outbox, key, max_bytes=_MAX_BYTES), where=f"{outbox.url}/{key}")
    if lock.digest != sha256:
        raise InvalidInputError("is not the lock that its name says", where=outbox.url, key=key)
    return lock


def publish_report(outbox: Store, report: PlatformReport) -> None:
    """Upload the worker's report to the outbox.

    An attempt has one report, which is never replaced.
    """
    ensure_object(outbox, record_key(report.record_id, REPORT_NAME), report.model_dump_json().encode())


def fetch_report(outbox: Store, order: UpgradeOrder) -> PlatformReport:
    """Return the report that answers this order.

    Raise `InvalidInputError` for a different report, `ObjectMissingError` for none.
    """
    key = record_key(order.record_id, REPORT_NAME)
    report = read_model(PlatformReport, read_bytes(outbox, key, max_bytes=_MAX_BYTES), where=f"{outbox.url}/{key}")
    expected = (order.record_id, order.platform, order.nonce)
    if (report.record_id, report.platform, report.nonce) != expected:
        raise InvalidInputError("answers a different order", where=outbox.url, key=key)
    if report.answer is not None and report.answer.candidate_sha256 != order.lock_sha256:
        raise InvalidInputError("is about a different lock", where=outbox.url, key=key)
    return report


def find_report(outbox: Store, order: UpgradeOrder) -> Recorded:
    """Return the state of this attempt's report in the outbox.

    Raise `PlumblineError` if the outbox cannot be read.
    """
    try:
        report = fetch_report(outbox, order)
    except ObjectMissingError:
        return Recorded(RecordKind.ABSENT)
    except InvalidInputError as error:
        return Recorded(RecordKind.FOREIGN, str(error))
    is_infrastructure = report.answer is None and report.exit_code == ExitCode.INCONCLUSIVE
    return Recorded(RecordKind.INFRASTRUCTURE if is_infrastructure else RecordKind.COMPLETE, report.error)
