"""`python -m tasks.starting`: a flow run's process on the local stack, as `python -m prefect.engine` is elsewhere."""

from __future__ import annotations

import runpy

from plumbline.loading import without_collection

__all__ = ["main"]


def main() -> None:
    """Run the flow run that the environment names; the exit code is the engine's."""
    with without_collection():
        import prefect.flow_engine  # noqa: F401 - loaded here, for the engine
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
