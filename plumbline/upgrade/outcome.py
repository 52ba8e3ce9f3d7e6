"""Outcome of an upgrade over all platforms.

It has an answer for each platform, one verdict, its texts, and its place in the central store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

from plumbline.night.alerts import AlertMessage
from plumbline.night.central import CentralStore
from plumbline.report.markdown import safe
from plumbline.report.sentences import SYMBOLS
from plumbline.schema.alert_event import AlertEvent
from plumbline.schema.base import Model, Name, read_model
from plumbline.schema.errors import ExitCode
from plumbline.schema.escape import one_line
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import Outcome, exit_code, worst
from plumbline.upgrade.answer import UpgradeAnswer
from plumbline.upgrade.orders import PlatformReport
from plumbline.upgrade.report import html_report, summary_report

_EVENTS: dict[Outcome, AlertEvent] = {"drift": "drift", "invalid": "invalid", "inconclusive": "unavailable"}
_MOST_CHARACTERS = 1000
_OUTCOME_NAME = "upgrade.json"


class PlatformOutcome(Model):
    """Outcome of an upgrade on one platform."""

    verdict: Outcome
    optional: bool = False
    answer: UpgradeAnswer | None = None
    why: str = ""
    """Without an answer: what kept it from coming."""
    is_misconfigured: bool = False
    current_sha256: str = ""
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """Format the answer as sentences, or say why none exists."""
        return self.answer.sentences if self.answer is not None else (self.why,)


class UpgradeOutcome(Model):
    """Stored outcome of one upgrade.

    `plumbline upgrade --api --json` prints it.
    """

    schema_version: Literal[1] = 1
    upgrade: Name
    suite: str
    workload: str
    candidate: str
    candidate_sha256: str
    verdict: Outcome
    platforms: dict[str, PlatformOutcome]
    pages: dict[str, str] = {}
    """By platform: where its page lies."""
    flow_run: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code for the verdict.

        It is 2 (usage) if every invalid platform has a wrong input.
        """
        bad = [platform for platform in self.platforms.values() if platform.verdict == "invalid"]
        is_usage = self.verdict == "invalid" and all(_is_usage(platform) for platform in bad)
        return ExitCode.USAGE if is_usage else exit_code(self.verdict)

    def document(self) -> dict[str, Any]:
        """Return the outcome as a JSON document, with the exit code."""
        return {**self.to_json(), "exit_code": int(self.exit_code)}


def _is_usage(outcome: PlatformOutcome) -> bool:
    return outcome.is_misconfigured or (outcome.answer is not None and outcome.answer.exit_code is ExitCode.USAGE)


def platform_outcome(
    report: PlatformReport | None, why: str, notes: tuple[str, ...], suite: Suite, name: str
) -> PlatformOutcome:
    """Convert a worker's report, or its absence, to an outcome.

    An absent report is never a pass.
    """
    optional = suite.platforms[name].optional
    if report is None:
        return PlatformOutcome(verdict="inconclusive", optional=optional, why=why or "no report", notes=notes)
    about = {"optional": optional, "notes": notes, "current_sha256": report.current_sha256}
    if report.answer is not None:
        return PlatformOutcome(verdict=report.answer.verdict, answer=report.answer, **about)
    is_usage = report.exit_code == ExitCode.USAGE
    verdict: Outcome = "invalid" if is_usage or report.exit_code == ExitCode.INVALID else "inconclusive"
    return PlatformOutcome(verdict=verdict, why=report.error or "no answer", is_misconfigured=is_usage, **about)


def sum_up(platforms: Mapping[str, PlatformOutcome], **about: Any) -> UpgradeOutcome:
    """Return the overall outcome: the worst of all platforms.

    An optional platform without an answer does not count.
    """
    counted = [platform for platform in platforms.values() if platform.answer is not None or not platform.optional]
    verdict = worst([platform.verdict for platform in counted]) if counted else "inconclusive"
    return UpgradeOutcome(verdict=verdict, platforms=dict(platforms), **about)


def _key(suite: str, upgrade: str, name: str) -> str:
    return f"upgrades/{suite}/{upgrade}/{name}"


def keep_outcome(
    central: CentralStore, outcome: UpgradeOutcome, check: Callable[[], None] = lambda: None
) -> UpgradeOutcome:
    """Store each platform's page, then the outcome.

    Return the outcome with the addresses of the pages. `check` may raise to prevent each write.
    """
    key, pages = partial(_key, outcome.suite, outcome.upgrade), {}
    for name, platform in outcome.platforms.items():
        if platform.answer is not None:
            central.put_text(key(f"{name}.html"), html_report(platform.answer), check)
            pages[name] = f"{central.store.url}/{key(f'{name}.html')}"
    kept = outcome.replace(pages=pages)
    central.put_text(key(_OUTCOME_NAME), kept.model_dump_json(indent=2), check)
    return kept


def read_outcome(central: CentralStore, suite: str, upgrade: str) -> UpgradeOutcome | None:
    """Read the stored outcome of an upgrade.

    `None` if there is none yet.
    """
    key = _key(suite, upgrade, _OUTCOME_NAME)
    stored = central.read_document(key)
    return read_model(UpgradeOutcome, stored, where=f"{central.store.url}/{key}") if stored else None


def headline(outcome: UpgradeOutcome) -> str:
    """Return a one-line verdict.

    It has the first sentence of each platform that did not pass.
    """
    parts = [
        f"{name}: {platform.sentences[0]}" for name, platform in outcome.platforms.items() if platform.verdict != "pass"
    ] or [f"training is the same on {', '.join(outcome.platforms)}"]
    return one_line(f"{outcome.verdict}: {'; '.join(parts)}")[:_MOST_CHARACTERS]


def summary(outcome: UpgradeOutcome) -> str:
    """Return the outcome as Markdown, for UI and CI summaries."""
    lines = [f"# {SYMBOLS[outcome.verdict]} Upgrade to {safe(outcome.candidate, 200)}: {outcome.verdict}", ""]
    for name, platform in outcome.platforms.items():
        if platform.answer is None:
            lines += [
                f"## {SYMBOLS[platform.verdict]} {safe(name, 100)}: {platform.verdict}",
                "",
                safe(platform.why, 1000),
                "",
            ]
        else:
            lines += [f"**{safe(name, 100)}**", "", summary_report(platform.answer), ""]
    return "\n".join(lines)


def alerts_of(outcome: UpgradeOutcome) -> Iterator[AlertMessage]:
    """Yield an alert for each platform that did not pass."""
    for name, platform in outcome.platforms.items():
        if platform.verdict == "pass":
            continue
        lines = [
            *platform.sentences,
            *(
                ["keep the current versions meanwhile:", *platform.answer.constraints]
                if platform.answer and platform.answer.constraints
                else []
            ),
            f"candidate: {outcome.candidate}, sha256 {outcome.candidate_sha256[:12]}",
            f"upgrade: {outcome.upgrade}",
            *(
                f"{label}: {value}"
                for label, value in (("report", outcome.pages.get(name)), ("run", outcome.flow_run))
                if value
            ),
        ]
        event = _EVENTS[platform.verdict]
        title = f"[plumbline] {outcome.suite}: {event} of an upgrade on {name}: {platform.sentences[0]}"[:200]
        yield AlertMessage(
            f"upgrade/{outcome.upgrade}/{name}/{platform.verdict}", event, f"{outcome.suite}/upgrade/{name}",
            title, "\n".join(lines),
        )  # fmt: skip
