"""JUnit XML of a round, or of imported series.

A round has one suite per platform, and one case per check, named `SUITE.WORKLOAD.PLATFORM` and by the check, so that a
CI's history finds a night's case in every other night. A case has the seconds of the training's part that it checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from plumbline.report.history import change_sentence, level_sentence
from plumbline.report.sentences import cause_line, clean, number, place
from plumbline.report.summary import LineSummary
from plumbline.schema.verdict import Finding, Outcome, PlatformResult, RoundVerdict

_TAGS: dict[Outcome, str] = {"drift": "failure", "inconclusive": "error", "invalid": "error"}
"""Missing evidence is an error: `skipped` would count as success."""


def junit_xml(verdict: RoundVerdict) -> str:
    """Return a round as JUnit XML."""
    root = ET.Element("testsuites", name=f"plumbline {clean(verdict.suite, 63)}")
    for name, result in verdict.platforms.items():
        root.append(_suite(verdict, clean(name, 63), result))
    if not verdict.platforms:
        root.append(_suite(verdict, "round", PlatformResult(verdict=verdict.verdict)))
    return junit_document(root)


def series_junit(source: str, lines: Sequence[LineSummary]) -> str:
    """Return imported series as JUnit XML: one suite per platform, one case per workload and metric."""
    root = ET.Element("testsuites", name=f"plumbline history {clean(source, 80)}")
    for platform in dict.fromkeys(line.platform for line in lines):
        name = clean(platform, 63)
        suite = ET.SubElement(root, "testsuite", name=name)
        for line in (line for line in lines if line.platform == platform):
            group = f"history.{name}.{clean(line.workload, 63)}"
            case = ET.SubElement(suite, "testcase", name=clean(line.metric, 120), classname=group)
            tag = _TAGS.get(line.verdict)
            if tag is not None:
                entry = ET.SubElement(case, tag, message=clean(line.sentence, 1000), type=line.verdict)
                entry.text = "\n".join([level_sentence(line), *map(change_sentence, line.changes)])
        for key, tag in (("tests", "*"), ("failures", "*/failure"), ("errors", "*/error")):
            suite.set(key, str(len(suite.findall(tag))))
    return junit_document(root)


def junit_document(root: ET.Element) -> str:
    """Return JUnit XML of test suites, with totals."""
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(verdict: RoundVerdict, name: str, result: PlatformResult) -> ET.Element:
    suite = ET.Element("testsuite", name=name, id=clean(verdict.round, 80))
    suite_name = clean(verdict.suite or "plumbline", 63)
    findings = list(result.findings)
    if not any(finding.outcome == result.verdict for finding in findings):
        # The file always contains the verdict, even if no check has that outcome.
        detail = result.unavailable or f"the platform's verdict is {result.verdict}"
        findings.append(Finding(check="verdict", outcome=result.verdict, detail=detail))
    counts: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        group = ".".join(part for part in (suite_name, clean(finding.workload, 63), name) if part)
        own_name = _case_name(finding)
        counts[group, own_name] += 1
        suffix = f" ({counts[group, own_name]})" if counts[group, own_name] > 1 else ""
        case = ET.SubElement(
            suite, "testcase", name=f"{own_name}{suffix}", classname=group, time=f"{_part_seconds(finding, result):.3f}"
        )
        tag = _TAGS.get(finding.outcome)
        if tag is not None:
            entry = ET.SubElement(case, tag, message=_message(finding), type=finding.outcome)
            entry.text = _text(finding, result)
    suite.set("tests", str(len(findings)))
    suite.set("failures", str(sum(_TAGS.get(finding.outcome) == "failure" for finding in findings)))
    suite.set("errors", str(sum(_TAGS.get(finding.outcome) == "error" for finding in findings)))
    suite.set("time", f"{_total_seconds(result):.3f}")
    return suite


def _own_check(finding: Finding) -> str:
    return clean(finding.check.removeprefix(f"{finding.workload}."), 80)


def _case_name(finding: Finding) -> str:
    """Return a stable test case name, without the record id."""
    kind, _, name = finding.against.partition(" ")
    against = {"platform": f" against platform {clean(name, 63)}", "baseline": " against the baseline"}.get(kind, "")
    return f"{_own_check(finding)}{against}"


def _part_seconds(finding: Finding, result: PlatformResult) -> float:
    part = _own_check(finding).split(".")[0]
    return max(0.0, result.timings.get(f"{finding.workload}.{part}", result.timings.get(part, 0.0)))


def _total_seconds(result: PlatformResult) -> float:
    """Return a platform's total training seconds. Waiting for data is a share of their parts."""
    if "total" in result.timings:
        return max(0.0, result.timings["total"])
    return sum(max(0.0, took) for name, took in result.timings.items() if not name.endswith("data_wait"))


def _message(finding: Finding) -> str:
    if not finding.metric:
        return clean(finding.detail or finding.check)
    unit = f" {clean(finding.unit, 20)}" if finding.unit else ""
    limit = f", limit {number(finding.limit)}{unit}" if finding.limit is not None else ""
    return f"{clean(finding.metric, 200)}: {number(finding.observed)}{unit}{limit}"


def _text(finding: Finding, result: PlatformResult) -> str:
    lines = [clean(finding.detail)] if finding.detail else []
    if result.first_divergence is not None:
        lines.append(f"first divergence: {place(result.first_divergence)}")
    lines += [f"cause: {cause.code} ({cause.sure}): {clean(cause.why)}" for cause in result.causes]
    return "\n".join(lines or [cause_line(result)])
