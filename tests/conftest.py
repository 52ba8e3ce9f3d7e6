"""Deselection of tests that this machine cannot run, with a list at the end.

One thread for every training under test, from before torch is first imported: another number of threads rounds
otherwise, and two threads on two busy cores wait longer than they compute. Tests with two threads let idle ones sleep:
OpenMP's threads wait in a loop, which costs five times the computation of a small model.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A shell that starts the tests in the background ignores SIGINT, and `nohup` SIGHUP: their children would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

_NOT_RUN = pytest.StashKey[dict[str, list[str]]]()
STRANGER = 65533
"""A user id without a name. `nobody` is PostgreSQL's user where root runs the stack."""
AS_NOBODY = [
    "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
]  # fmt: skip
"""Command that starts a program as a second user, who may read what root installed, and write nothing of it."""
MLFLOW_SERVER = Path(__file__).parents[1] / ".venv/mlflow-server/bin/mlflow"
SYSTEM_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or ""
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _gpu() -> bool:
    import torch  # noqa: PLC0415 - only where a test asks for it

    return torch.cuda.is_available()


def _postgresql() -> bool:
    return bool(shutil.which("postgres") or list(Path("/usr/lib/postgresql").glob("*/bin/postgres")))


def _browser() -> bool:
    # Without the variable a missing browser fails its tests, and says how to get one.
    return os.environ.get("PLUMBLINE_NO_BROWSER") != "1" or any(map(shutil.which, _CHROMIUM))


def _uv() -> bool:
    return shutil.which("uv") is not None


def _docs() -> bool:
    return (Path(__file__).resolve().parents[1] / ".venv" / "docs-tool" / ".installed").is_file()


def _mlflow_server() -> bool:
    return MLFLOW_SERVER.exists()


def _mount() -> bool:
    command = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


def _tables() -> bool:
    return os.environ.get("PLUMBLINE_WHOLE_TABLES") == "1"


def _other_user() -> bool:
    command = ["/usr/bin/env", "-i", SYSTEM_PYTHON, "-c", ""]
    return os.geteuid() == 0 and not subprocess.run(command, user=STRANGER, cwd="/", check=False).returncode


def _second_user() -> bool:
    command = [*AS_NOBODY, sys.executable, "-c", ""]
    return bool(shutil.which("setpriv")) and not subprocess.run(command, cwd="/", check=False).returncode


NEEDS = {
    "gpu": (_gpu, "an NVIDIA GPU"),
    "postgresql": (_postgresql, "an installed PostgreSQL"),
    "browser": (_browser, "Chromium (apt-get install chromium)"),
    "uv": (_uv, "uv (pip install uv)"),
    "docs": (_docs, "MkDocs (make docs)"),
    "mlflow_server": (_mlflow_server, "MLflow's tracking server (make mlflow-server)"),
    "mount": (_mount, "permission to mount a small file system (unshare --map-root-user --mount)"),
    "whole_table": (_tables, "PLUMBLINE_WHOLE_TABLES=1, to try every case of a table (make tables)"),
    "other_user": (_other_user, "root, to act as a different user, and a Python that this user can run"),
    "second_user": (_second_user, "root and setpriv, to run the product as a second user"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose marker requires something missing."""
    not_run = config.stash.setdefault(_NOT_RUN, {})
    for marker, (is_available, description) in NEEDS.items():
        marked_items = [item for item in items if item.get_closest_marker(marker)]
        if marked_items and not is_available():
            not_run[description] = [item.nodeid for item in marked_items]
            config.hook.pytest_deselected(items=marked_items)
            items[:] = [item for item in items if item not in marked_items]


def pytest_collection_finish() -> None:
    """Exempt the collected tests and their modules from garbage collection, which would search them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the deselected tests of a `pytest -n` worker."""
    output: dict[str, list[str]] = getattr(node, "workeroutput", {}).get("not_run", {})
    node.config.stash.setdefault(_NOT_RUN, {}).update(output)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the deselected tests to the reporting process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = session.config.stash.get(_NOT_RUN, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the deselected tests."""
    for description, names in config.stash.get(_NOT_RUN, {}).items():
        terminalreporter.section(f"{len(names)} tests not run (missing: {description})")
        for name in names:
            terminalreporter.line(f"not run: {name}")
