"""The doctor's checks through Prefect: the API, every platform's workers, and what a worker sees where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient

from plumbline.doctor import Ailment, Expected, Report, examine_report
from plumbline.errors import ExitCode, InvalidInputError, UnavailableError
from plumbline.schema.base import read_model
from plumbline.schema.suite import Suite
from tasks.asking import ask_worker
from tasks.deploying import wait_for_api
from tasks.observing import PREFECT_ERRORS, worker_states

__all__ = ["examine_prefect", "examine_workers"]

_API_SECONDS = 3.0


def examine_prefect(suite: Suite) -> list[Ailment]:
    """Does the API answer, and has every platform a worker online?"""
    try:
        wait_for_api(_API_SECONDS)
        with get_client(sync_client=True) as client:
            pools = [_pool(client, name, one.work_pool) for name, one in suite.platforms.items()]
            return [Ailment(where="Prefect API", what=f"{client.api_url} answers", well=True), *pools]
    except (UnavailableError, *PREFECT_ERRORS) as error:
        mend = "start the server, or set PREFECT_API_URL (and PREFECT_API_KEY)"
        return [Ailment(where="Prefect API", what=str(error), mend=mend, code=int(ExitCode.INCONCLUSIVE))]


def _pool(client: SyncPrefectClient, platform: str, pool: str) -> Ailment:
    where = f"{platform}: worker"
    workers = worker_states(client, pool)
    if workers is None:
        mend = "`plumbline deploy SUITE` makes it"
        return Ailment(where=where, what=f"there is no work pool {pool}", mend=mend, code=int(ExitCode.USAGE))
    online = [name for name, online in workers.items() if online]
    if online:
        return Ailment(where=where, what=f"{', '.join(online)} in {pool}", well=True)
    mend = f"start one there: `prefect worker start --pool {pool}`"
    return Ailment(where=where, what=f"no worker online in {pool}", mend=mend, code=int(ExitCode.INCONCLUSIVE))


def examine_workers(suite: Suite) -> Iterator[Ailment]:
    """Have every platform's worker look around; the reference first, whose torch is the others' measure."""
    torch = ""
    for name in sorted(suite.platforms, key=lambda name: name != suite.reference):
        asked = datetime.now(UTC)
        try:
            report = read_model(Report, ask_worker(suite, name).encode(), where=f"the report of {name}'s worker")
        except (UnavailableError, InvalidInputError) as error:
            yield Ailment(where=f"{name}'s worker", what=str(error), code=int(error.exit_code), mend="see its log")
            continue
        torch = torch or report.torch
        expected = Expected(torch=torch, accelerator=suite.platforms[name].accelerator)
        yield from examine_report(name, report, expected, asked, datetime.now(UTC))
