"""Deselection of tests that this machine cannot run, counted at the end.

One thread for every training under test, from before torch is first imported: another number of threads rounds
otherwise, and two threads on two busy cores wait longer than they compute. Tests with two threads let idle ones sleep:
OpenMP's threads wait in a loop, which costs five times the computation of a small model.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from plumbline.local.servers import reserve_port

pytest_plugins = ["tests.cpu_budget"]
gc.disable()  # until all tests are collected: half of the time of a collection
# The Prefect server of `tests/flows` has one port for all processes of a call.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["PLUMBLINE_TEST_PORT"] = str(reserve_port())
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# One server forks for all tests, and of two calls of this function the last one wins.
multiprocessing.get_context("forkserver").set_forkserver_preload([
    "__main__", "boto3", "plumbline.data.stores.s3", "tests.contract.stage_child",
    "plumbline.train.job", "datasets", "tests.train.forked_ranks",
])  # fmt: skip
# A shell that starts the tests in the background ignores SIGINT, and `nohup` SIGHUP: their children would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

_NOT_RUN = pytest.StashKey[dict[str, int]]()
_ROOT = Path(__file__).resolve().parents[1]
STRANGER = 65533
"""A user id without a name. `nobody` is PostgreSQL's user where root runs the stack."""
AS_NOBODY = [
    "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
]  # fmt: skip
"""Command that starts a program as a second user, who may read what root installed, and write nothing of it."""
AZURITE = _ROOT / "infra/local/azurite/node_modules/azurite/dist/src/blob/main.js"
MLFLOW_SERVER = _ROOT / ".venv/mlflow-server/bin/mlflow"
SYSTEM_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or ""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _gpu() -> bool:
    import torch  # noqa: PLC0415 - only where a test asks for it

    return torch.cuda.is_available()


def _engine() -> bool:
    return _program("terraform", "tofu")() and (_ROOT / ".venv/infra-tools/.installed").is_file()


def _program(*names: str) -> Callable[[], bool]:
    return lambda: any(map(shutil.which, names))


def _mount() -> bool:
    command = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


def _other_user() -> bool:
    command = ["/usr/bin/env", "-i", SYSTEM_PYTHON, "-c", ""]
    return os.geteuid() == 0 and not subprocess.run(command, user=STRANGER, cwd="/", check=False).returncode


def _second_user() -> bool:
    command = [*AS_NOBODY, sys.executable, "-c", ""]
    return bool(shutil.which("setpriv")) and not subprocess.run(command, cwd="/", check=False).returncode


def _index() -> bool:
    wanted = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--retries=0", "--timeout=5", "packaging"]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *wanted]
    return not subprocess.run(command, capture_output=True, check=False).returncode


NEEDS = {
    "accelerate": (lambda: find_spec("accelerate") is not None, "accelerate, which Hugging Face's Trainer imports"),
    "azurite": (AZURITE.is_file, "Azurite, which `make` installs from npm's registry"),
    "browser": (_program(*CHROMIUM), "Chromium on the path (`make browser` says how to get one)"),
    "compiler": (_program("cc"), "a C compiler, with g++, on the path"),
    "docs": ((_ROOT / ".venv/docs-tool/.installed").is_file, "MkDocs (`make docs` installs it)"),
    "engine": (_engine, "terraform or tofu, and the tools of `make infra-check`"),
    "git": (_program("git"), "git on the path"),
    "gpu": (_gpu, "an NVIDIA GPU"),
    "index": (_index, "a package index that pip reaches"),
    "lightning": (lambda: find_spec("lightning") is not None, "lightning, whose loops a callback records"),
    "mlflow_server": (MLFLOW_SERVER.is_file, "MLflow's tracking server (`make mlflow-server` installs it)"),
    "mount": (_mount, "permission to mount a small file system (unshare --map-root-user --mount)"),
    "other_user": (_other_user, "root, and a Python that a different user can run"),
    "second_user": (_second_user, "root and setpriv, and a checkout that a different user can read"),
    "triton": (lambda: find_spec("triton") is not None, "triton, whose interpreter runs a kernel on a CPU"),
    "uv": (_program("uv"), "uv on the path (`make test-all` installs it)"),
}
"""What a machine may lack, by the marker or the fixture of the tests that need it."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare a marker for each need."""
    for name, (_, description) in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: needs {description}; counted where it is missing")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases behind the first of a test long; deselect and count tests that need something missing."""
    cases: Counter[str] = Counter()
    for item in items:
        if first := item.get_closest_marker("first"):
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > first.args[0]:
                item.add_marker("long")
    not_run = config.stash.setdefault(_NOT_RUN, {})
    for need, (is_available, description) in NEEDS.items():
        lacking = [item for item in items if item.get_closest_marker(need) or need in _fixtures(item)]
        if lacking and not is_available():
            not_run[description] = len(lacking)
            config.hook.pytest_deselected(items=lacking)
            items[:] = [item for item in items if item not in lacking]


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


@pytest.fixture(autouse=True, scope="module")
def _ended_events() -> Iterator[None]:
    """End the thread that sends Prefect's events, which outlives the flows of a module.

    Each ping of its connection draws from Python's random generator, whose states a training of a later module records.
    What forks itself runs in a process without Prefect (`tests.train.forked_ranks`): a process that is forked where
    events were sent ends with code 1.
    """
    yield
    if (worker := sys.modules.get("prefect.events.worker")) is not None:
        worker.EventsWorker.drain_all(timeout=10, at_exit=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt the collected tests and their modules from garbage collection, which would search them each time."""
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the numbers of deselected tests of a `pytest -n` worker."""
    output: dict[str, int] = getattr(node, "workeroutput", {}).get("not_run", {})
    node.config.stash.setdefault(_NOT_RUN, {}).update(output)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the numbers of deselected tests to the reporting process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = session.config.stash.get(_NOT_RUN, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List what was missing, and how many tests need it."""
    for description, count in config.stash.get(_NOT_RUN, {}).items():
        terminalreporter.line(f"not run: tests that need {description}: {count}")
