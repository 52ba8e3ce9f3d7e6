"""Locks that uv writes here, with the packages that uv and pip take from them.

uv resolves each project from wheels written by hand, without a network, and exports each choice of extras and groups.
pip then says what it would install from the same choice as `pylock.toml`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.environments.locks import read_lock
from plumbline.schema.errors import ConfigurationError
from tests.unit.upgrade.wheels import write_wheel

pytestmark = [pytest.mark.uv, pytest.mark.long]

_PROJECT = '[project]\nname = "team"\nversion = "1.0"\nrequires-python = ">=3.10"\n'
_CONFLICT = 'conflicts = [[{ extra = "cpu" }, { extra = "gpu" }]]\n'
_TWO_TORCHES = '[project.optional-dependencies]\ncpu = ["torch==2.6"]\ngpu = ["torch==2.7", "kernels"]\n'
_MEMBER = '[tool.uv.workspace]\nmembers = ["member"]\n'
PROJECTS: dict[str, tuple[list[str], str, str]] = {
    "one": (["plain"], "", ""),
    "pinned": (["plain==1.0"], "", ""),
    "needs another": (["outer"], "", ""),
    "needs an extra of another": (["outer[fast]"], "", ""),
    "marker that holds": (["plain; python_version >= '3.10'"], "", ""),
    "marker that does not hold": (["outer", "plain; sys_platform == 'win32'"], "", ""),
    "marker of a platform": (["plain; sys_platform == 'linux'", "torch; sys_platform == 'darwin'"], "", ""),
    "two versions by marker": (["torch==2.6; sys_platform == 'linux'", "torch==2.7; sys_platform != 'linux'"], "", ""),
    "two versions by Python": (["torch==2.6; python_version < '3.11'", "torch==2.7; python_version >= '3.11'"], "", ""),
    "marker of an implementation": (["plain; implementation_name == 'cpython'"], "", ""),
    "nightly": (["kernels>=3.0.dev0"], "", 'prerelease = "allow"\n'),
    "local version": (["labelled==1.0+cpu"], "", ""),
    "extra": (["plain"], '[project.optional-dependencies]\nfast = ["kernels"]\n', ""),
    "two extras": (["plain"], '[project.optional-dependencies]\nfast = ["kernels"]\ntext = ["outer[fast]"]\n', ""),
    "extra with a marker": (
        ["plain"], "[project.optional-dependencies]\nfast = [\"kernels; sys_platform == 'linux'\", \"torch\"]\n", "",
    ),
    "extra of itself": (
        ["plain"], '[project.optional-dependencies]\nfast = ["kernels"]\nall = ["team[fast]", "torch"]\n', "",
    ),
    "group": (["plain"], '[dependency-groups]\ntest = ["outer"]\n', ""),
    "group that is the default": (["plain"], '[dependency-groups]\ndev = ["outer"]\n', ""),
    "group that includes one": (
        ["plain"], '[dependency-groups]\ntest = ["outer"]\nlint = ["kernels", { include-group = "test" }]\n', "",
    ),
    "extra and group": (
        ["plain"], '[project.optional-dependencies]\nfast = ["kernels"]\n[dependency-groups]\ntest = ["outer"]\n', "",
    ),
    "conflicting extras": (["plain"], _TWO_TORCHES, _CONFLICT),
    "conflicting extras with a base": (["needs-torch"], _TWO_TORCHES, _CONFLICT),
    "conflicting groups": (
        ["plain"], '[dependency-groups]\nold = ["torch==2.6"]\nnew = ["torch==2.7"]\n',
        'conflicts = [[{ group = "old" }, { group = "new" }]]\n',
    ),
    "constraint": (["needs-torch"], "", 'constraint-dependencies = ["torch<2.7"]\n'),
    "override": (["needs-torch"], "", 'override-dependencies = ["torch==2.6"]\n'),
    "environments": (["torch; sys_platform == 'linux'"], "", "environments = [\"sys_platform == 'linux'\"]\n"),
    "workspace": (["member", "plain"], "", f"[tool.uv.sources]\nmember = {{ workspace = true }}\n{_MEMBER}"),
    "editable folder": (["member"], "", '[tool.uv.sources]\nmember = { path = "member", editable = true }\n'),
    "folder": (["member", "plain"], "", '[tool.uv.sources]\nmember = { path = "member" }\n'),
    "direct file": (
        ["plain"], "", '[tool.uv.sources]\nplain = { path = "../index/plain-1.0-py3-none-any.whl" }\n',
    ),
    "direct file in an extra": (
        ["outer"], '[project.optional-dependencies]\nfast = ["torch"]\n',
        '[tool.uv.sources]\ntorch = { path = "../index/torch-2.6-py3-none-any.whl" }\n',
    ),
    "repository": (["kern"], "", '[tool.uv.sources]\nkern = {{ git = "file://{index}/kern" }}\n'),
    "repository in a group": (
        [], '[dependency-groups]\ntest = ["kern"]\n',
        '[tool.uv.sources]\nkern = {{ git = "file://{index}/kern" }}\n',
    ),
}  # fmt: skip
"""By what is special: requirements, tables of the project, and keys of `[tool.uv]`."""
CHOICES = {
    "extra": ["", "fast"], "two extras": ["", "fast", "text", "fast text"], "extra with a marker": ["fast"],
    "extra of itself": ["fast", "all"], "group": ["", "test"], "group that is the default": ["", "dev"],
    "group that includes one": ["", "test", "lint"], "extra and group": ["", "fast", "test", "fast test"],
    "conflicting extras": ["", "cpu", "gpu"], "conflicting extras with a base": ["cpu", "gpu"],
    "conflicting groups": ["", "old", "new"], "direct file in an extra": ["", "fast"],
    "repository in a group": ["test"],
}  # fmt: skip
"""By project: the extras and groups that are chosen together."""


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """Return a folder of wheels, with a repository."""
    folder = tmp_path_factory.mktemp("tools") / "index"
    for name, version, requires in (
        ("plain", "1.0", ()), ("inner", "1.0", ()), ("torch", "2.6", ()), ("torch", "2.7", ("cuda",)),
        ("cuda", "12.4", ()), ("kernels", "2.0", ()), ("kernels", "3.0.dev1", ()), ("needs-torch", "1.0", ("torch",)),
        ("labelled", "1.0+cpu", ()),
        ("outer", "1.0", ("inner", 'kernels; extra == "fast"', 'cuda; sys_platform == "win32"')),
    ):  # fmt: skip
        lines = ("\nProvides-Extra: fast",) if name == "outer" else ()
        write_wheel(folder, name, version, {f"{name.replace('-', '_')}.py": ""}, [*requires[:-1], *(
            f"{one}{lines[0] if lines else ''}" for one in requires[-1:]
        )])  # fmt: skip
    kern = folder / "kern"
    kern.mkdir()
    (kern / "pyproject.toml").write_text(_PROJECT.replace("team", "kern"))
    commit = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "kern"]
    for command in (["git", "init", "-q"], ["git", "add", "."], commit):
        subprocess.run(command, cwd=kern, check=True)
    return folder


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "UV_CACHE_DIR": str(folder.parent / "cache"), "UV_OFFLINE": "1"}
    for name in ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"):
        environment.pop(name, None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("project", "choice"), [(name, choice) for name in PROJECTS for choice in CHOICES.get(name, [""])]
)
def test_a_lock_has_the_packages_that_its_tools_take_from_it(index, tmp_path, project, choice):
    requirements, tables, settings = PROJECTS[project]
    folder = tmp_path / "team"
    for place, text in (("member", _PROJECT.replace("team", "member") + 'dependencies = ["inner"]\n'), (".", "")):
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / "pyproject.toml").write_text(text)
    settings = (
        settings.replace("{{", "{").replace("}}", "}").replace("{index}", str(index)).replace("../index", str(index))
    )
    links = f'[tool.uv]\nno-index = true\nfind-links = ["{index}"]\n{settings}'
    (folder / "pyproject.toml").write_text(f"{_PROJECT}dependencies = {json.dumps(requirements)}\n{tables}{links}")
    run(["uv", "lock", "--python", sys.executable], folder)
    chosen = choice.split()
    options = [
        f"--{'extra' if f'{name} = [' in tables.partition('[dependency')[0] else 'group'}={name}" for name in chosen
    ]
    emitted = "--no-emit-project" if "direct" in project else "--no-emit-local"
    export = ["uv", "export", "-q", "--no-default-groups", "--no-hashes", emitted, *options]
    (folder / "exported.txt").write_text(run([*export, "--format=requirements-txt"], folder))
    expected = versions(read_lock(folder / "exported.txt"))
    if any(address.endswith(".whl") for address in expected.values()):
        for lock in ("uv.lock", "pylock.toml"):
            (folder / "pylock.toml").write_text(run([*export, "--format=pylock.toml"], folder))
            with pytest.raises(ConfigurationError, match="is a path of the machine that wrote the lock"):
                read_lock(folder / lock, extras=chosen if lock == "uv.lock" else None)
        return
    assert versions(read_lock(folder / "uv.lock", extras=chosen)) == expected
    (folder / "pylock.toml").write_text(run([*export, "--format=pylock.toml"], folder))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
    ]
    report = run([*pip, f"--find-links={index}", "--report=-", "-r", "pylock.toml"], folder)
    assert versions(read_lock(folder / "pylock.toml")) == expected
    assert sorted(expected) == sorted(one["metadata"]["name"] for one in json.loads(report)["install"])


def versions(lock):
    """Return by name the version, or the last part of an address: an export has no version of a repository."""
    return {name: pin.url.rpartition("/")[2] or pin.version for name, pin in lock.pins.items()}
