"""The doctor's checks through Prefect: the API, every platform's workers, and what a worker sees where it runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError

from plumbline.doctor import Ailment, Expected, Report, examine_clock, examine_report
from plumbline.errors import ExitCode, InvalidInputError
from plumbline.schema.base import read_model
from plumbline.schema.suite import Suite
from tasks.asking import Answer, ask_workers
from tasks.observing import PREFECT_ERRORS, worker_states

__all__ = ["examine_prefect", "examine_workers"]

_API, _WORKER = "Prefect API", "worker"
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def examine_prefect(suite: Suite) -> tuple[list[Ailment], list[str]]:
    """Does the API answer, is its clock ours, and has every platform a worker online? Also, which platforms have."""
    with get_client(sync_client=True) as client:
        url = str(client.api_url).rstrip("/")
        try:
            asked = datetime.now(UTC)
            told = parsedate_to_datetime(client.hello().headers["date"])
            mend = "start a time service here, or on the server (chrony, systemd-timesyncd)"
            clock = examine_clock("Prefect API's clock", told, asked, datetime.now(UTC), mend)
            pools = {name: _pool(client, name, one.work_pool) for name, one in suite.platforms.items()}
        except PREFECT_ERRORS as error:
            return [_unreachable(url, error)], []
    api = Ailment(where=_API, what=f"{url} answers", well=True)
    return [api, clock, *pools.values()], [name for name, one in pools.items() if one.well]


def _unreachable(url: str, error: Exception) -> Ailment:
    if isinstance(error, PrefectHTTPStatusError) and error.response.status_code in _REFUSED:
        what = f"{url}: wrong credentials: HTTP {error.response.status_code}"
        mend = "set PREFECT_API_KEY, or PREFECT_API_AUTH_STRING for a server of your own"
        return Ailment(where=_API, what=what, mend=mend, code=int(ExitCode.USAGE))
    what = f"{url} does not answer: {str(error).partition(chr(10))[0] or type(error).__name__}"
    return Ailment(
        where=_API, what=what, mend="start the server, or set PREFECT_API_URL", code=int(ExitCode.INCONCLUSIVE)
    )


def _pool(client: SyncPrefectClient, platform: str, pool: str) -> Ailment:
    where = f"{platform}: {_WORKER}"
    workers = worker_states(client, pool)
    if workers is None:
        mend = "`plumbline deploy SUITE` makes it"
        return Ailment(where=where, what=f"there is no work pool {pool}", mend=mend, code=int(ExitCode.USAGE))
    online = [name for name, online in workers.items() if online]
    if online:
        return Ailment(where=where, what=f"{', '.join(online)} in {pool}", well=True)
    mend = f"start one there: `prefect worker start --pool {pool}`"
    return Ailment(where=where, what=f"no worker online in {pool}", mend=mend, code=int(ExitCode.INCONCLUSIVE))


def examine_workers(suite: Suite, names: Iterable[str]) -> list[Ailment]:
    """Have these platforms' workers look around; the reference's torch is the others' measure."""
    found: list[Ailment] = []
    reports: dict[str, tuple[Report, Answer]] = {}
    for name, answer in ask_workers(suite, names).items():
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
