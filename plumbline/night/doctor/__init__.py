"""Doctor checks without Prefect: stores, clock, disk, versions."""

from plumbline.night.doctor.checks import CheckResult as CheckResult
from plumbline.night.doctor.checks import examine_recipients as examine_recipients
from plumbline.night.doctor.checks import worst_code as worst_code
from plumbline.night.doctor.conformance import examine_conformance as examine_conformance
from plumbline.night.doctor.place import ExpectedStack as ExpectedStack
from plumbline.night.doctor.place import Report as Report
from plumbline.night.doctor.place import examine_clock as examine_clock
from plumbline.night.doctor.place import examine_report as examine_report
from plumbline.night.doctor.place import look_here as look_here
from plumbline.night.doctor.stores import examine_stores as examine_stores
