"""Environments are whole: what changes is changed, what goes is gone, and nothing half-built is ever used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from bench.upgrade.wheels import broken_sdist, poisonable_sdist
from plumbline.environments.changes import changes_between, conflicts, needed_changes
from plumbline.environments.installed import installed_packages
from plumbline.environments.installer import Installer, choose_installer
from plumbline.environments.locks import Pin
from plumbline.environments.locks.model import Lock
from plumbline.environments.package_store import PackageStore, build_once, link_files
from plumbline.environments.virtual_environments import Environments, check_current
from plumbline.schema.errors import ConfigurationError, UnavailableError
from tests.unit.upgrade.wheels import write_wheel

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    write_wheel(folder, "demo-outer", "1.0", {"demo_outer.py": "value = 1\n"}, ["demo-inner<2"])
    write_wheel(folder, "demo-outer", "2.0", {"demo_outer.py": "value = 2\n"}, ["demo-inner>=2"])
    write_wheel(folder, "demo-inner", "1.0", {"demo_space/inner.py": "value = 1\n", "gone.py": ""})
    write_wheel(folder, "demo-inner", "2.0", {"demo_space/inner.py": "value = 2\n"})
    write_wheel(folder, "demo-hook", "1.0", {"demo_hook.pth": "import sys\n", "demo_space/hook.py": ""})
    write_wheel(folder, "demo-native", "1.0+cpu", {"demo_native.py": ""})
    return folder


@pytest.fixture(scope="module", params=["pip", pytest.param("uv", marks=pytest.mark.uv)])
def kind(request):
    """Which program installs."""
    return request.param


@pytest.fixture(scope="module")
def store(tmp_path_factory, index, kind):
    """A store that holds all of them, installed in two calls of the installer."""
    found = PackageStore(
        tmp_path_factory.mktemp("store"), Installer(kind, ("--no-index", f"--find-links={index}")), allows_unhashed=True
    )
    old = [pin("demo-outer", "1.0"), pin("demo-inner", "1.0"), pin("demo-hook", "1.0"), pin("demo-native", "1.0+cpu")]
    assert found.add(old) == ()
    assert found.add([pin("demo-outer", "2.0"), pin("demo-inner", "2.0")]) == ()
    return found


def pin(name, version):
    return Pin(name=name, version=version)


def installed(store, *pins):
    assert store.add(pins) == ()
    return {one.name: store.read(one) for one in pins}


def said(environment, code):
    command = [str(environment.python), "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, env={"PYTHONSAFEPATH": "1"}
    ).stdout.strip()


def test_what_a_package_installs_below_the_prefix_is_of_its_version(tmp_path, index, store):
    """Settings, libraries and programs lie outside of `site-packages`."""
    for version in ("1.0", "2.0"):
        data = f"demo_data-{version}.data"
        write_wheel(index, "demo-data", version, {
            "demo_data.py": "", f"{data}/data/etc/demo.json": version, f"{data}/data/lib/demo.so": version,
            f"{data}/scripts/demo-program": f"#!python\nimport sys\nprint(sys.prefix, {version})\n",
        })  # fmt: skip
    both = installed(store, pin("demo-data", "1.0"), pin("demo-data", "2.0"))
    one = Environments(tmp_path, store, {"demo-data": store.read(pin("demo-data", "1.0"))}).build(())
    two = Environments(tmp_path, store, both).build(())
    for environment, version in ((one, "1.0"), (two, "2.0")):
        assert (environment.folder / "etc/demo.json").read_text() == version
        assert (environment.folder / "lib/demo.so").read_text() == version
        program = subprocess.run([environment.folder / "bin/demo-program"], capture_output=True, text=True, check=True)
        assert program.stdout.split() == [str(environment.folder), version]
    # What the environment of a user has there is found by its RECORD.
    again = installed_packages([str(next((two.folder / "lib").glob("python*/site-packages")))])["demo-data"]
    assert {"etc/demo.json", "lib/demo.so", "bin/demo-program"} <= again.data.keys()


def test_a_removed_package_leaves_no_content_in_a_file_of_one_that_stays(tmp_path, index, store):
    write_wheel(index, "demo-one", "1.0", {"demo_shared/core.py": "value = 1\n", "demo_shared/same.py": "x = 0\n"})
    write_wheel(index, "demo-other", "1.0", {"demo_shared/core.py": "value = 2\n", "demo_shared/same.py": "x = 0\n"})
    packages = installed(store, pin("demo-one", "1.0"), pin("demo-other", "1.0"))
    site = tmp_path / "site-packages"
    for name in ("demo-one", "demo-other"):  # as installed one after the other
        link_files(packages[name].root, site, packages[name].files)
    environments = Environments(tmp_path / "environments", store, installed_packages([str(site)]))
    one, other = (environments.current[name].pin for name in ("demo-one", "demo-other"))
    gone = changes_between({"demo-one": one, "demo-other": other}, {"demo-one": one})
    with pytest.raises(ConfigurationError, match=r"demo-one and demo-other own demo_shared/core\.py"):
        environments.build(gone)
    kept = changes_between({"demo-one": one, "demo-other": other}, {"demo-other": other})
    assert said(environments.build(kept), "from demo_shared.core import value; print(value)") == "2"


NAMES = "import importlib.metadata as m; print(sorted(d.name + ' ' + d.version for d in m.distributions()))"


def test_a_change_replaces_its_package_whole_and_a_removed_one_is_absent(tmp_path, store):
    current = installed(store, pin("demo-outer", "1.0"), pin("demo-inner", "1.0"), pin("demo-hook", "1.0"))
    environments = Environments(tmp_path / "environments", store, current)
    before = environments.build(())
    assert said(before, NAMES) == "['demo-hook 1.0', 'demo-inner 1.0', 'demo-outer 1.0']"
    candidate = {"demo-outer": pin("demo-outer", "2.0"), "demo-inner": pin("demo-inner", "2.0")}
    changes = changes_between({name: one.pin for name, one in current.items()}, candidate)
    installed(store, *candidate.values())
    after = environments.build(changes)
    assert said(after, NAMES) == "['demo-inner 2.0', 'demo-outer 2.0']"
    assert said(after, "import demo_space.inner as i, demo_outer as o; print(i.value, o.value)") == "2 2"
    for gone in ("gone", "demo_space.hook"):
        with pytest.raises(subprocess.CalledProcessError):
            said(after, f"import {gone}")
    assert said(after, "import plumbline as p; print(p.__file__)").startswith(str(after.folder))
    assert environments.build(changes) == after
    assert before.sha256 != after.sha256


def test_files_are_linked_not_copied(tmp_path, store):
    current = installed(store, pin("demo-inner", "1.0"))
    environment = Environments(tmp_path / "environments", store, current).build(())
    (linked,) = environment.folder.glob("lib/*/site-packages/gone.py")
    assert linked.stat().st_nlink > 1


def test_bytecode_that_the_installer_does_not_list_is_linked_too(tmp_path, kind, index):
    """uv lists none: without it every training would compile all that it imports."""
    store = PackageStore(
        tmp_path / "store", Installer(kind, ("--no-index", f"--find-links={index}")), allows_unhashed=True
    )
    current = installed(store, pin("demo-inner", "1.0"))
    site = current["demo-inner"].root
    assert list(site.glob("demo_space/__pycache__/inner.*.pyc"))
    environment = Environments(tmp_path / "environments", store, current).build(())
    assert list(environment.folder.glob("lib/*/site-packages/demo_space/__pycache__/inner.*.pyc"))


def test_the_bytecode_of_a_team_s_own_interpreter_is_linked(tmp_path):
    """uv compiles for the environment's Python, whose bytecode has a name of its own."""
    about = tmp_path / "demo-1.0.dist-info"
    (tmp_path / "__pycache__").mkdir()
    about.mkdir()
    (about / "METADATA").write_text("Name: demo\nVersion: 1.0\n")
    (about / "RECORD").write_text("demo.py,,\n")
    for file in ("demo.py", "__pycache__/demo.cpython-399.pyc"):
        (tmp_path / file).write_text("")
    files = installed_packages([str(tmp_path)], {"python_version": "3.99"})["demo"].files
    assert files == ("demo.py", "__pycache__/demo.cpython-399.pyc")


def test_of_two_packages_with_one_file_the_later_one_wins_and_both_keep_their_own(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.py").write_text(name)
        link_files(tmp_path / name, tmp_path / "target", ["same.py", "gone.py"])
    assert [(tmp_path / name / "same.py").read_text() for name in ("a", "b", "target")] == ["a", "b", "b"]


def test_what_cannot_be_installed_is_named_and_the_rest_is_kept(tmp_path, index, kind):
    store = PackageStore(tmp_path, Installer(kind, ("--no-index", f"--find-links={index}")), allows_unhashed=True)
    (failure,) = store.add([pin("demo-outer", "1.0"), pin("demo-inner", "9.9")])
    assert (failure.stage, failure.package) == ("install", "demo-inner")
    assert store.folder(pin("demo-outer", "1.0")).is_dir()
    assert not store.folder(pin("demo-inner", "9.9")).exists()


def test_a_build_that_fails_says_why(tmp_path, kind):
    broken_sdist(tmp_path, "demo-broken", "1.0")
    installer = Installer(kind, ("--no-index", f"--find-links={tmp_path}"))
    message = installer.install([pin("demo-broken", "1.0")], tmp_path / "target")
    words = {
        "pip": "error: metadata-generation-failed: RuntimeError: needs a compiler",
        "uv": "error: Failed to build `demo-broken==1.0`: RuntimeError: needs a compiler",
    }
    assert message == words[kind]


def test_a_version_that_the_index_lacks_is_named(tmp_path, index, kind):
    installer = Installer(kind, ("--no-index", f"--find-links={index}"))
    message = installer.install([pin("demo-inner", "9.9")], tmp_path / "target")
    words = {
        "pip": "error: No matching distribution found for demo-inner==9.9",
        "uv": "error: No solution found when resolving dependencies: Because there is no version of demo-inner==9.9",
    }
    assert message.casefold().startswith(words[kind].casefold())


def test_a_wheel_that_was_built_beside_another_torch_is_not_used(tmp_path, kind, monkeypatch):
    poisonable_sdist(tmp_path / "index", "demo-native", "1.0", "value = 2")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    installer = Installer(kind, ("--no-index", f"--find-links={tmp_path / 'index'}"))
    for torch, value in (("other", "value = 2"), ("own", "value = 1")):
        monkeypatch.setenv("TORCH_BENCH", torch)
        assert installer.install([pin("demo-native", "1.0")], tmp_path / torch) is None
        assert next((tmp_path / torch).glob("**/demo_native.py")).read_text() == value


def test_an_index_that_answers_nothing_accuses_no_package(tmp_path, kind):
    store = PackageStore(
        tmp_path / "store", Installer(kind, ("--no-index", f"--find-links={tmp_path}")), allows_unhashed=True
    )
    with pytest.raises(UnavailableError, match="no index has it"):
        store.add([pin("demo-outer", "1.0")])


def test_a_hash_that_does_not_fit_is_refused(store):
    wrong = Pin(name="demo-inner", version="1.0", hashes=("sha256:" + "0" * 64,))
    (failure,) = store.add([wrong])
    assert failure.package == "demo-inner"
    assert not store.folder(wrong).exists()


def test_the_store_tells_apart_what_is_installed_otherwise(tmp_path, monkeypatch):
    one = pin("demo-inner", "1.0")
    folders = {
        PackageStore(tmp_path, Installer("pip")).folder(one),
        PackageStore(tmp_path, Installer("uv")).folder(one),
        PackageStore(tmp_path, Installer("pip", ("--index-url=https://other",))).folder(one),
        PackageStore(tmp_path, Installer("pip")).folder(Pin(name="demo-inner", version="1.0", hashes=("sha256:aa",))),
    }
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@host/simple")
    folders.add(PackageStore(tmp_path, Installer("pip")).folder(one))
    assert len(folders) == 5
    assert not any("secret" in str(folder) for folder in folders)


def test_a_build_that_was_killed_is_built_anew(tmp_path):
    folder = tmp_path / "built"
    code = (
        "import sys, time; from pathlib import Path; from plumbline.environments.package_store import build_once\n"
        "def build(part):\n    (part / 'half').write_text('x'); print('half', flush=True); time.sleep(60)\n"
        "build_once(Path(sys.argv[1]), build)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.wait(120)
    child.stdout.close()
    assert not folder.exists()
    build_once(folder, lambda part: (part / "whole").write_text("y"))
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fail(_):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        build_once(tmp_path / "built", fail)
    assert not list(tmp_path.glob("built*")) or [path.name for path in tmp_path.glob("built*")] == ["built.lock"]


def test_requirements_say_what_is_tried_together_and_what_breaks(store):
    current = installed(store, pin("demo-outer", "1.0"), pin("demo-inner", "1.0"))
    new = installed(store, pin("demo-outer", "2.0"), pin("demo-inner", "2.0"))
    changes = changes_between(
        {name: one.pin for name, one in current.items()}, {name: one.pin for name, one in new.items()}
    )
    needs = needed_changes({change.package: change for change in changes}, current, new)
    assert needs == {"demo-outer": frozenset({"demo-inner"}), "demo-inner": frozenset({"demo-outer"})}
    assert list(conflicts(current, {**current, **new})) == []
    ((name, reason),) = conflicts(current, {**current, "demo-inner": new["demo-inner"]})
    assert name == "demo-inner"
    assert reason == "demo-outer 1.0 requires demo-inner<2, the candidate has 2.0"
    ((name, _),) = conflicts(current, {**current, "demo-outer": new["demo-outer"]})
    assert name == "demo-outer"


def test_the_current_lock_has_to_be_what_is_installed(store, monkeypatch):
    current = installed(store, pin("demo-inner", "1.0"))
    lock = Lock(where="lock.txt", sha256="0" * 64, pins={})

    def check(version):
        check_current(lock, changes_between({"demo-inner": pin("demo-inner", version)}, {}), current)

    check("1.0.0")
    with pytest.raises(ConfigurationError, match=r"pins demo-inner 1.1, this environment holds 1.0"):
        check("1.1")
    monkeypatch.setenv("PYTHONPATH", str(current["demo-inner"].root))
    with pytest.raises(ConfigurationError, match="lies on PYTHONPATH"):
        check("1.0")


def test_a_local_label_that_a_lock_does_not_pin_is_no_difference(store):
    current = installed(store, pin("demo-native", "1.0+cpu"))
    lock = Lock(where="lock.txt", sha256="0" * 64, pins={})
    check_current(lock, changes_between({"demo-native": pin("demo-native", "1.0")}, {}), current)


@pytest.mark.parametrize(
    ("arguments", "variables", "settings", "kind"),
    [
        ((), {}, "", "uv"),
        (("--no-index",), {}, "", "pip"),
        ((), {"PIP_INDEX_URL": "https://host/simple"}, ":env:.index-url='https://host/simple'", "pip"),
        ((), {}, "global.extra-index-url='https://host/simple'", "pip"),
        ((), {}, "install.constraint='/etc/constraints.txt'", "pip"),
        # What is no matter of what is installed, as images set it.
        ((), {"PIP_NO_CACHE_DIR": "1"}, ":env:.no-cache-dir='1'\n:env:.root-user-action='ignore'", "uv"),
        ((), {}, "global.disable-pip-version-check='1'\nglobal.default-timeout='180'\nglobal.timeout='9'", "uv"),
    ],
)
def test_pip_installs_where_it_was_told_what_to_install(monkeypatch, arguments, variables, settings, kind):
    def listed(command, **_):
        assert command[-2:] == ["config", "list"]
        return subprocess.CompletedProcess(command, 0, settings, "")

    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/uv")
    monkeypatch.setattr("plumbline.environments.installer.subprocess.run", listed)
    assert choose_installer(arguments).identity[0] == kind


def test_two_processes_build_one_environment_once(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path; from plumbline.environments.package_store import build_once\n"
        "def build(part):\n    time.sleep(0.3); (part / str(os.getpid())).write_text('')\n"
        "print('up', flush=True); input(); build_once(Path(sys.argv[1]), build)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "built")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, env=os.environ, **pipes) for _ in range(2)]
    assert [child.stdout.readline() for child in children] == ["up\n"] * 2
    for child in children:
        print(file=child.stdin, flush=True)
    assert [(child.communicate(timeout=120)[0], child.returncode) for child in children] == [("", 0)] * 2
    assert len(list((tmp_path / "built").iterdir())) == 1
