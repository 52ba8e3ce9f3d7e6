"""An upgrade over all platforms: an answer for each, one verdict, the words for it, and where it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from plumbline.alerts import AlertMessage
from plumbline.central import CentralStore
from plumbline.errors import ExitCode
from plumbline.report.markdown import safe
from plumbline.report.words import SYMBOLS
from plumbline.schema.base import Model, Name, read_model
from plumbline.schema.suite import AlertEvent, Suite
from plumbline.schema.verdict import Outcome, exit_code, worst
from plumbline.upgrade.answer import UpgradeAnswer
from plumbline.upgrade.orders import PlatformReport
from plumbline.upgrade.report import html_report, summary_report

__all__ = ["PlatformOutcome", "UpgradeOutcome", "alerts_of", "headline", "platform_outcome", "sum_up", "summary"]

_EVENTS: dict[Outcome, AlertEvent] = {"drift": "drift", "invalid": "invalid", "inconclusive": "unavailable"}
_MOST_CHARACTERS = 1000
_OUTCOME_NAME = "upgrade.json"


class PlatformOutcome(Model):
    """What is known of one platform."""

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
        """The answer in sentences, or why there is none."""
        return self.answer.sentences if self.answer is not None else (self.why,)


class UpgradeOutcome(Model):
    """One upgrade, as the central store keeps it and `plumbline upgrade --api --json` prints it."""

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
        """The verdict's, or that of wrong usage where a wrong input is all that made it invalid."""
        bad = [one for one in self.platforms.values() if one.verdict == "invalid"]
        is_usage = self.verdict == "invalid" and all(_is_usage(one) for one in bad)
        return ExitCode.USAGE if is_usage else exit_code(self.verdict)

    def document(self) -> dict[str, Any]:
        """Return the JSON document, with the exit code."""
        return {**self.to_json(), "exit_code": int(self.exit_code)}


def _is_usage(outcome: PlatformOutcome) -> bool:
    return outcome.is_misconfigured or (outcome.answer is not None and outcome.answer.exit_code is ExitCode.USAGE)


def platform_outcome(
    report: PlatformReport | None, why: str, notes: tuple[str, ...], suite: Suite, name: str
) -> PlatformOutcome:
    """Return what a report says, or what its absence means: never a pass."""
    optional = suite.platforms[name].optional
    if report is None:
        return PlatformOutcome(verdict="inconclusive", optional=optional, why=why or "no report", notes=notes)
    found = {"optional": optional, "notes": notes, "current_sha256": report.current_sha256}
    if report.answer is not None:
        return PlatformOutcome(verdict=report.answer.verdict, answer=report.answer, **found)
    is_usage = report.exit_code == ExitCode.USAGE
    verdict: Outcome = "invalid" if is_usage or report.exit_code == ExitCode.INVALID else "inconclusive"
    return PlatformOutcome(verdict=verdict, why=report.error or "no answer", is_misconfigured=is_usage, **found)


def sum_up(platforms: Mapping[str, PlatformOutcome], **about: Any) -> UpgradeOutcome:
    """Return the whole: the worst of the platforms; an optional one without an answer does not count."""
    counted = [one for one in platforms.values() if one.answer is not None or not one.optional]
    verdict = worst([one.verdict for one in counted]) if counted else "inconclusive"
    return UpgradeOutcome(verdict=verdict, platforms=dict(platforms), **about)


def _key(upgrade: str, name: str) -> str:
    return f"upgrades/{upgrade}/{name}"


def keep_outcome(
    central: CentralStore, outcome: UpgradeOutcome, check: Callable[[], None] = lambda: None
) -> UpgradeOutcome:
    """Keep the page of each platform, then the outcome; return it with the pages' addresses.

    `check` may raise to prevent each write.
    """
    pages = {}
    for name, one in outcome.platforms.items():
        if one.answer is not None:
            central.put_text(_key(outcome.upgrade, f"{name}.html"), html_report(one.answer), check)
            pages[name] = f"{central.store.url}/{_key(outcome.upgrade, f'{name}.html')}"
    kept = outcome.replace(pages=pages)
    central.put_text(_key(outcome.upgrade, _OUTCOME_NAME), kept.model_dump_json(indent=2), check)
    return kept


def read_outcome(central: CentralStore, upgrade: str) -> UpgradeOutcome | None:
    """Return the outcome of an upgrade; `None` where there is none yet."""
    key = _key(upgrade, _OUTCOME_NAME)
    found = central.read_pointer(key)
    return read_model(UpgradeOutcome, found[0], where=f"{central.store.url}/{key}") if found else None


def headline(outcome: UpgradeOutcome) -> str:
    """Return one line: the verdict, and the first sentence of each platform that did not pass."""
    parts = [f"{name}: {one.sentences[0]}" for name, one in outcome.platforms.items() if one.verdict != "pass"] or [
        f"training is the same on {', '.join(outcome.platforms)}"
    ]
    return f"{outcome.verdict}: {'; '.join(parts)}"[:_MOST_CHARACTERS]


def summary(outcome: UpgradeOutcome) -> str:
    """Return Markdown for the UI and the summary of a CI job."""
    lines = [f"# {SYMBOLS[outcome.verdict]} Upgrade to {safe(outcome.candidate, 200)}: {outcome.verdict}", ""]
    for name, one in outcome.platforms.items():
        if one.answer is None:
            lines += [f"## {SYMBOLS[one.verdict]} {safe(name, 100)}: {one.verdict}", "", safe(one.why, 1000), ""]
        else:
            lines += [f"**{safe(name, 100)}**", "", summary_report(one.answer), ""]
    return "\n".join(lines)


def alerts_of(outcome: UpgradeOutcome) -> Iterator[AlertMessage]:
    """Yield the message about each platform that did not pass."""
    for name, one in outcome.platforms.items():
        if one.verdict == "pass":
            continue
        lines = [
            *one.sentences,
            *(
                ["keep the current versions meanwhile:", *one.answer.constraints]
                if one.answer and one.answer.constraints
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
        event = _EVENTS[one.verdict]
        yield AlertMessage(
            f"upgrade/{outcome.upgrade}/{name}", event, f"{outcome.suite}/upgrade/{name}",
            f"[plumbline] {outcome.suite}: {event} of an upgrade on {name}: {one.sentences[0]}"[:200], "\n".join(lines),
        )  # fmt: skip
