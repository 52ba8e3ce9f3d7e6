"""`python -m drills.prefect_versions`: a round over processes of different versions of Prefect, with PostgreSQL.

The server runs with this Python; `--controllers`, `--workers` and `--then` name the Pythons of other environments, with
the same Plumbline: of the command and the controllers' worker, of the platforms' workers, and of the server that takes
over the same database before a second round.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from drills.expectations import expect_pass
from drills.transcript import expect, say
from plumbline.local.stack import CONTROLLERS, Stack
from tests.flows.local_stack import RunningStack
from tests.flows.small_suite import small_suite

__all__ = ["main"]


def _version(python: str) -> str:
    ask = "import prefect; print(prefect.__version__)"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def _start(stack: RunningStack, python: str, names: list[str]) -> None:
    """Start workers of another environment."""
    sys.executable = python  # a worker's command begins with it
    stack.stack.start_workers(names)


def _upgrade_server(stack: RunningStack, python: str) -> None:
    """Stop the server, and start that of another environment on its database."""
    with stack.held():
        servers = stack.stack.servers
        server = servers.children["prefect"]
        server.process.terminate()
        server.process.wait(60)
        command, environment = servers._commands["prefect"]
        servers._commands["prefect"] = ([python, *command[1:]], environment)
        servers.start_one("prefect")
        servers.wait_for_api()
    stack.until_online(*stack.suite.platforms, CONTROLLERS)


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--controllers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--workers", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--then", metavar="PYTHON", help="the server's Python for a second round")
    args = parser.parse_args()
    versions = {
        name: _version(python)
        for name, python in (("server", sys.executable), ("controllers", args.controllers), ("workers", args.workers))
    }
    say(", ".join(f"{name}: Prefect {version}" for name, version in versions.items()))
    with tempfile.TemporaryDirectory(prefix="plumbline-drill-") as folder:
        state = Path(folder)
        suite = small_suite(state, "versions", start_seconds=90)
        with Stack(suite, state, say=say) as stack:
            stack.wait_until_ready()
            running = RunningStack(stack, suite)
            try:
                _start(running, args.workers, list(suite.platforms))
                sys.executable = args.controllers
                path = running.deploy()
                _start(running, args.controllers, [CONTROLLERS])
                running.until_online(*suite.platforms, CONTROLLERS)
                expect_pass(running, running.start_deployed(path, suite, f"{time.strftime('%Y%m%d-%H%M%S')}-first"))
                if args.then:
                    _upgrade_server(running, args.then)
                    say(f"the server is of Prefect {_version(args.then)} now")
                    again = running.command("deploy", str(path), "--state", str(state), "--dry-run", "--json")
                    expect('"change"' not in again, "its deployments are as before")
                    second = f"{time.strftime('%Y%m%d-%H%M%S')}-second"
                    expect_pass(running, running.start_deployed(path, suite, second))
            finally:
                running.close()
    say("right")


if __name__ == "__main__":
    main()
