"""JUnit XML of a round.

It has one suite per platform, and one case per check.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from plumbline.report.words import cause_line, clean, number, place
from plumbline.schema.verdict import Finding, Outcome, PlatformResult, RoundVerdict

__all__ = ["junit_xml"]

_TAGS: dict[Outcome, str] = {"drift": "failure", "inconclusive": "error", "invalid": "error"}
"""Missing evidence is an error: `skipped` would count as success."""


def junit_xml(verdict: RoundVerdict) -> str:
    """Return the XML document."""
    root = ET.Element("testsuites", name=f"plumbline {clean(verdict.suite, 63)}")
    for name, result in verdict.platforms.items():
        root.append(_suite(verdict, clean(name, 63), result))
    if not verdict.platforms:
        root.append(_suite(verdict, "round", PlatformResult(verdict=verdict.verdict)))
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(verdict: RoundVerdict, name: str, result: PlatformResult) -> ET.Element:
    suite = ET.Element("testsuite", name=name, id=clean(verdict.round, 80))
    findings = list(result.findings)
    if not any(finding.outcome == result.verdict for finding in findings):
        # The file always contains the verdict, even if no check has that outcome.
        detail = result.unavailable or f"the platform's verdict is {result.verdict}"
        findings.append(Finding(check="verdict", outcome=result.verdict, detail=detail))
    for finding in findings:
        case = ET.SubElement(suite, "testcase", name=_case_name(finding), classname=f"plumbline.{name}")
        tag = _TAGS.get(finding.outcome)
        if tag is not None:
            entry = ET.SubElement(case, tag, message=_message(finding), type=finding.outcome)
            entry.text = _text(finding, result)
    suite.set("tests", str(len(findings)))
    suite.set("failures", str(sum(_TAGS.get(finding.outcome) == "failure" for finding in findings)))
    suite.set("errors", str(sum(_TAGS.get(finding.outcome) == "error" for finding in findings)))
    suite.set("time", f"{max(0.0, result.timings.get('total', 0.0)):.3f}")
    return suite


def _case_name(finding: Finding) -> str:
    return (
        f"{clean(finding.check, 80)} against {clean(finding.against, 80)}" if finding.against else clean(finding.check)
    )


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
