"""Commands on Windows, as far as hidden modules and names show it, and a lint of what one system alone has.

The package lies as a checkout on Windows leaves it: the links `plumbline/flows` and `plumbline/tasks` are text files.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.records import load_record
from tests.contract.records import make_record
from tests.unit.report.samples import passing, verdict_of

CODE = Path(__file__).parents[3]
HIDDEN = ("fcntl", "grp", "pwd", "resource", "termios")
"""Modules that Windows lacks."""
OF_ONE_SYSTEM = {
    "os": {
        "O_CLOEXEC", "O_NOFOLLOW", "POSIX_FADV_DONTNEED", "WNOHANG", "chown", "fchmod", "fchown", "fork", "getegid",
        "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "posix_fadvise", "pread", "preadv",
        "pwrite", "readv", "sched_getaffinity", "sched_setaffinity", "setsid", "statvfs", "sysconf", "uname", "wait",
    },
    "signal": {"SIGALRM", "SIGBUS", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "setitimer"},
}  # fmt: skip
"""Names that Windows, and in part macOS, lack."""
OF_THE_COPY = """
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
"""
COMMAND = f"""{OF_THE_COPY}
import argparse, logging, os, shutil, signal, subprocess, tempfile, threading  # Windows' own do not miss what follows
import numpy, pyarrow, pydantic
sys.modules.update(dict.fromkeys({HIDDEN}))
for module, names in {OF_ONE_SYSTEM}.items():
    for name in names:
        vars(sys.modules[module]).pop(name, None)
from plumbline.cli.main import main
codes = [main([command, "anything"]) for command in sys.argv[2:] if sys.argv[1:2] == ["each"]]
sys.exit(codes.count(2) if codes else main())
"""
WITHOUT_PROC = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a package whose links are text files."""
    folder = tmp_path_factory.mktemp("windows")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CODE / "plumbline", folder / "plumbline", symlinks=True, ignore=ignored)
    for link in (folder / "plumbline" / name for name in ("flows", "tasks")):
        target = str(link.readlink())
        link.unlink()
        link.write_text(target, encoding="utf-8")
    return folder


@pytest.fixture(params=[[], pytest.param(WITHOUT_PROC, marks=pytest.mark.mount)], ids=["", "without-proc"])
def prefix(request: pytest.FixtureRequest) -> list[str]:
    prefix: list[str] = request.param
    return prefix


def run(package: Path, *arguments: str, prefix: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command with Windows' names and text encoding, in which no file may be opened by default."""
    strict = ["-P", "-X", "warn_default_encoding", "-W", "error::EncodingWarning:plumbline"]
    command = [*(prefix or []), sys.executable, *strict, "-c", COMMAND, str(package), *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        command, cwd=package, env=environment, capture_output=True, encoding="cp1252", timeout=120, check=False
    )


@pytest.mark.parametrize("command", ["", "compare", "explain", "history", "report"])
def test_what_reads_given_records_starts_anywhere(package: Path, command: str) -> None:
    done = run(package, *command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: plumbline" in done.stdout


def test_given_records_are_compared_anywhere(package: Path, prefix: list[str], tmp_path: Path) -> None:
    records = CODE / "tests" / "unit" / "judge" / "h100"
    page = tmp_path / "compare.html"
    done = run(package, "compare", str(records / "cpu"), str(records / "tf32"), "--html", str(page), prefix=prefix)
    assert (done.returncode, "precision" in done.stdout, done.stderr) == (1, True, "")
    assert "precision" in page.read_text("utf-8")


def test_a_cause_is_explained_anywhere(package: Path, prefix: list[str]) -> None:
    done = run(package, "explain", "precision", prefix=prefix)
    assert (done.returncode, done.stdout.startswith("precision"), done.stderr) == (0, True, "")


def test_a_series_is_judged_anywhere(package: Path, prefix: list[str]) -> None:
    done = run(package, "history", "--from", str(CODE / "examples" / "speed.csv"), prefix=prefix)
    assert (done.returncode, "(-8.2%), worse" in done.stdout, done.stderr) == (1, True, "")


def test_a_stored_round_is_reported_anywhere(package: Path, prefix: list[str], tmp_path: Path) -> None:
    central = CentralStore(open_store(f"file://{tmp_path}/central"))
    central.put_record(load_record(make_record(tmp_path / "record", "aws-1", "aws")))
    central.put_round(verdict_of("pass", {"aws": passing(records=("aws-1",), findings=())}))
    where = ["--store", f"file://{tmp_path}/central", "--out", str(tmp_path / "report.html")]
    done = run(package, "report", "latest", *where, "--json", prefix=prefix)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verdict"] == "pass"
    assert (tmp_path / "report.html").stat().st_size > 1000


def linux_commands() -> Iterator[str]:
    done = subprocess.run([sys.executable, "-m", "plumbline", "--help"], capture_output=True, text=True, check=True)
    yield from (line.split()[0] for line in done.stdout.splitlines() if line[:4] == "    " and line[4:5].isalpha())


def test_every_other_command_says_in_one_line_what_it_needs(package: Path) -> None:
    others = sorted(set(linux_commands()) - {"compare", "explain", "history", "report"})
    assert {"run", "train", "store", "deploy", "init"} <= set(others)
    done = run(package, "each", *others)
    assert done.stderr.splitlines() == [
        f"plumbline: {command}: needs Linux or macOS (hint: on Windows: WSL 2)" for command in others
    ]
    assert (done.returncode, done.stdout) == (len(others), "")


def test_links_that_a_checkout_lost_are_named(package: Path) -> None:
    code = f"{OF_THE_COPY}\nfrom plumbline.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, str(package), "run", "suite.toml"]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("plumbline: plumbline/flows: is a link that this checkout lost (hint: ")


def test_a_lock_is_refused_where_the_system_has_none() -> None:
    code = "import sys; sys.modules['fcntl'] = None; from plumbline.data.file_lock import lock; lock(0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=CODE, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("ConfigurationError: locking a file needs Linux or macOS (hint: on Windows: WSL 2)\n")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for name in ("plumbline", "flows", "tasks"):
        for path in (CODE / name).rglob("*.py"):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when their module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield child
        yield from at_import(child)


def test_a_module_of_one_system_is_imported_in_one_place_and_never_at_the_top() -> None:
    places: Counter[str] = Counter()
    for path, tree in modules():
        imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
        imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        places.update(name for name in imported if name in HIDDEN)
        top = {name.name for node in at_import(tree) if isinstance(node, ast.Import) for name in node.names}
        assert not top & set(HIDDEN), path
    assert places == {"pwd": 1, "resource": 1}  # and `fcntl` by its name, in `data/file_lock.py`


def test_no_module_needs_a_name_of_one_system_to_be_imported() -> None:
    needed = {
        f"{path.relative_to(CODE)}: {node.value.id}.{node.attr}"
        for path, tree in modules()
        for node in at_import(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in OF_ONE_SYSTEM.get(node.value.id, ())
    }
    assert not needed, "look it up by getattr, or in the function that needs it"


def test_the_names_of_one_system_are_those_of_this_one() -> None:
    assert all(hasattr(os, name) for name in OF_ONE_SYSTEM["os"])
    assert all(hasattr(signal, name) for name in OF_ONE_SYSTEM["signal"])


@pytest.mark.long
def test_every_name_that_the_product_uses_is_one_of_macos_too(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "mypy", "--platform", "darwin", "--cache-dir", str(tmp_path)]
    done = subprocess.run(check, cwd=CODE, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.git
def test_no_two_files_have_names_that_differ_by_case_alone_or_that_windows_refuses() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CODE, capture_output=True, text=True, check=True)
    names = listed.stdout.split("\0")
    assert [name for name, count in Counter(map(str.lower, names)).items() if count > 1] == []
    reserved = re.compile(r"(?i)(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)|[<>:\"|?*\\\\]|[. ](/|$)")
    assert [name for name in names if reserved.search(name)] == []
