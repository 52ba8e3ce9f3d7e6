"""Doctor's checks without Prefect: stores, clock, disk, versions."""

from plumbline.doctor.checks import CheckResult, examine_recipients, worst_code
from plumbline.doctor.conformance import examine_conformance
from plumbline.doctor.place import ExpectedStack, Report, examine_clock, examine_report, look_here
from plumbline.doctor.stores import examine_stores

__all__ = [
    "CheckResult",
    "ExpectedStack",
    "Report",
    "examine_clock",
    "examine_conformance",
    "examine_recipients",
    "examine_report",
    "examine_stores",
    "look_here",
    "worst_code",
]
