"""`python -m tasks.working worker start ...`: Prefect's own command, with a process worker that keeps a spare.

Prefect takes a second to load, which a round would wait for twice: for its controller's run, and for its trainings'.
"""

from __future__ import annotations

import runpy
import warnings
from typing import Any

from plumbline.loading import without_collection

with without_collection():
    from prefect.utilities import processutils
    from prefect.workers.process import ProcessWorker

from tasks.handing_over import Opener
from tasks.spare import Spare

__all__ = ["main"]


_spare = Spare()
_opener = Opener(_spare)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # that it takes the place of Prefect's own, as it is meant to

    class SparingWorker(ProcessWorker):
        """Prefect's process worker."""

        async def get_and_submit_flow_runs(self) -> Any:
            """Ask for work; and see to the spare, as often."""
            await _opener.tend()
            return await super().get_and_submit_flow_runs()

        async def __aexit__(self, *exc_info: object) -> None:
            await _spare.close()
            await super().__aexit__(*exc_info)


def main() -> None:
    """Prefect's command line."""
    processutils.open_process = _opener.open
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
