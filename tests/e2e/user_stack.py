"""Stack of one user of a machine: starts, waits for its workers, says so, and ends with its standard input.

Its arguments are the suite and the state folder.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from plumbline.local.stack import CONTROLLERS, Stack
from plumbline.schema.suite import read_suite
from plumbline.tasks.prefect_client.flow_runs import read_pool


def main(path: Path, state: Path) -> None:
    """Start the stack with its workers; print `online` once a run can start in each work pool."""
    suite = read_suite(path)
    pools = {*(platform.work_pool for platform in suite.platforms.values()), CONTROLLERS}
    with Stack(suite, state, say=lambda line: sys.stdout.write(f"{line}\n")) as stack:
        stack.wait_until_ready()
        deploy = stack.start_command("deploy", [str(path)])
        assert deploy.process.wait() == 0
        stack.start_workers()
        with (
            temporary_settings({PREFECT_API_URL: stack.api_url, PREFECT_API_AUTH_STRING: stack.login}),
            get_client(sync_client=True) as client,
        ):
            while not all((health := read_pool(client, pool)) and health.is_online for pool in pools):
                stack.check()
                time.sleep(0.5)
        sys.stdout.write("online\n")
        sys.stdout.flush()
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        while not ended.wait(0.2):
            stack.check()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
