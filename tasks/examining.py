"""The doctor's checks through Prefect: the API, every platform's workers, and what a worker sees where it runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from prefect import get_client

from plumbline.doctor import Ailment, Expected, Report, examine_clock, examine_report
from plumbline.doctor.ailments import from_error
from plumbline.errors import ExitCode, InvalidInputError, PlumblineError
from plumbline.schema.base import read_model
from plumbline.schema.suite import Suite
from tasks.answering import answering, wait_for_api
from tasks.asking import Answer, ask_workers
from tasks.observing import PREFECT_ERRORS
from tasks.pools import examine_pool

__all__ = ["examine_prefect", "examine_workers"]

_API = "Prefect API"


def examine_prefect(suite: Suite) -> tuple[list[Ailment], list[str]]:
    """Does the API answer, is its clock ours, and has every platform a worker online? Also, which platforms have."""
    try:
        wait_for_api(0.0)
        with get_client(sync_client=True) as client:
            api = Ailment(where=_API, what=f"{str(client.api_url).rstrip('/')} answers", well=True)
            asked = datetime.now(UTC)
            told = parsedate_to_datetime(client.hello().headers["date"])
            mend = "start a time service here, or on the server (chrony, systemd-timesyncd)"
            clock = examine_clock(f"{_API}'s clock", told, asked, datetime.now(UTC), mend)
            pools = {name: examine_pool(client, suite, name) for name in suite.platforms}
    except PlumblineError as error:
        return [from_error(_API, error)], []
    except PREFECT_ERRORS as error:
        return [Ailment(where=_API, what=str(error), mend="its log tells", code=int(ExitCode.INCONCLUSIVE))], []
    return [api, clock, *pools.values()], [name for name, one in pools.items() if one.well]


def examine_workers(suite: Suite, names: Iterable[str]) -> list[Ailment]:
    """Have these platforms' workers look around; the reference's torch is the others' measure."""
    found: list[Ailment] = []
    reports: dict[str, tuple[Report, Answer]] = {}
    try:
        with answering():
            answers = ask_workers(suite, names)
    except PlumblineError as error:
        return [from_error(_API, error)]
    for name, answer in answers.items():
        where = f"{name}'s worker"
        if answer.why:
            found.append(Ailment(where=where, what=answer.why, mend=answer.mend, code=int(ExitCode.INCONCLUSIVE)))
            continue
        try:
            reports[name] = read_model(Report, answer.words.encode(), where="its report"), answer
        except InvalidInputError as error:
            mend = "install the same version of plumbline on every worker"
            found.append(Ailment(where=where, what=str(error), mend=mend, code=int(ExitCode.USAGE)))
    torch = reports[suite.reference][0].torch if suite.reference in reports else ""
    for name, (report, answer) in reports.items():
        expected = Expected(torch=torch, accelerator=suite.platforms[name].accelerator)
        found += examine_report(name, report, expected, answer.asked, answer.answered)
    return found
