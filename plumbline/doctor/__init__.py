"""Doctor's checks without Prefect: stores, clock, disk, versions."""

from plumbline.doctor.checks import CheckResult as CheckResult
from plumbline.doctor.checks import examine_recipients as examine_recipients
from plumbline.doctor.checks import worst_code as worst_code
from plumbline.doctor.conformance import examine_conformance as examine_conformance
from plumbline.doctor.place import ExpectedStack as ExpectedStack
from plumbline.doctor.place import Report as Report
from plumbline.doctor.place import examine_clock as examine_clock
from plumbline.doctor.place import examine_report as examine_report
from plumbline.doctor.place import look_here as look_here
from plumbline.doctor.stores import examine_stores as examine_stores
