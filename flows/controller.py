"""`python -m flows.controller`: one round, in a process of its own that tells its parent what happens.

Killed and started again with the same `--round`, it finds its children and finishes the same round.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from plumbline.central import CentralStore
from plumbline.errors import ExitCode, InconclusiveError, PlumblineError
from plumbline.loading import without_collection
from plumbline.prepare import prepare
from plumbline.schema.suite import read_suite
from plumbline.stores import open_store
from tasks.telling import events_only, tell

__all__ = ["main"]


def _round(args: argparse.Namespace) -> int:
    suite = read_suite(args.suite)
    tell("phase", name="data")
    specs = prepare(suite, args.state / "build", lambda message: tell("say", message=message)) if args.prepare else None
    tell("phase", name="deployments")
    # Prefect is imported only now: a suite or a store that is wrong is told before.
    with without_collection():
        from prefect import tags
        from prefect.exceptions import FailedRun

        from flows.regression import regression
        from tasks.answering import wait_for_api
        from tasks.deploying import deploy_trainings
        from tasks.tagging import round_tags

    wait_for_api(seconds=120.0)
    deploy_trainings(suite)
    recipes = {name: spec.to_json() for name, spec in specs.items()} if specs else None
    with tags(*round_tags(suite.name)):
        told = suite.model_dump(mode="json")
        state = regression(suite=told, specs=recipes, round_id=args.round, state=str(args.state), return_state=True)
    error = state.result(raise_on_failure=False)
    if isinstance(error, PlumblineError):
        raise error
    if isinstance(error, Exception) and not isinstance(error, FailedRun):
        raise InconclusiveError(f"the controller failed: {type(error).__name__}: {error}", mend="its log says where")
    verdict = CentralStore(open_store(suite.store)).get_round(args.round)
    tell("end", state=state.type.value, message=state.message or "", verdict=verdict.to_json())
    return 0


def main() -> int:
    """Run the round; the exit code says only whether it came to a verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--round", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--prepare", action="store_true", help="build and publish data and weights first")
    args = parser.parse_args()
    events_only()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _round(args)
    except PlumblineError as error:
        tell("error", message=str(error), exit_code=int(error.exit_code))
        return int(error.exit_code)
    except KeyboardInterrupt:
        tell("error", message="interrupted", exit_code=int(ExitCode.INCONCLUSIVE))
        return int(ExitCode.INCONCLUSIVE)


if __name__ == "__main__":
    sys.exit(main())
