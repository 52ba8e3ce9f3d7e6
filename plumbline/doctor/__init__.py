"""The doctor's checks that need no Prefect: stores, clock, disk, versions."""

from plumbline.doctor.ailments import Ailment, worst_code
from plumbline.doctor.place import Expected, Report, examine_clock, examine_report, look_here
from plumbline.doctor.stores import examine_stores

__all__ = [
    "Ailment",
    "Expected",
    "Report",
    "examine_clock",
    "examine_report",
    "examine_stores",
    "look_here",
    "worst_code",
]
