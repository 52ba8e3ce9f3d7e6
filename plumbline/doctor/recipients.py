"""Check that every round that does not pass reaches a recipient of alerts."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.doctor.checks import CheckResult
from plumbline.errors import ExitCode
from plumbline.schema.alert_event import EVENTS, is_good_news
from plumbline.schema.suite import Suite


def examine_recipients(suite: Suite) -> Iterator[CheckResult]:
    """Check that some recipient gets each event of a round that does not pass.

    A suite without any recipient may rely on automations of Prefect: that is no failure.
    """
    where = f"{suite.name}: alerts"
    if not suite.alerts:
        if suite.schedule is not None:
            text = "the suite has no [[alerts]] recipient: only automations of Prefect can report a round"
            yield CheckResult(where=where, what=text, well=True)
        return
    heard = {event for alert in suite.alerts for event in alert.on}
    if not any(platform.machines for platform in suite.platforms.values()):
        heard.add("left-on")
    unheard = [event for event in EVENTS if event not in heard and not is_good_news(event)]
    if not unheard:
        yield CheckResult(where=where, what="every round that does not pass reaches a recipient", well=True)
        return
    events = ", ".join(unheard)
    yield CheckResult(
        where=where,
        what=f"no recipient gets {events}",
        hint=f"add {events} to `on` of an [[alerts]] table: docs/how-to/alerts.md",
        code=int(ExitCode.USAGE),
    )
